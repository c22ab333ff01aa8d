package flows_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/flows"
	"nftproxy/model/service"
)

// world is a node as an oracle: what its connections do, and what the kernel would say of them.
type world struct {
	rng     *rand.Rand
	now     time.Time
	tracker *flows.Tracker
	conns   map[flows.Key]*conn
	settled map[uint64]int
	ended   map[uint64]int
	weight  map[service.Name]int
	thinned map[service.Name]int
	port    uint16
}

// conn is a connection: whether the kernel lets it through, and when it is answered and ends, after its begin.
type conn struct {
	flows.Start
	to       flows.Owner
	endpoint netip.AddrPort
	dropped  bool
	answer   time.Duration // 0 for none
	reset    bool
	ends     time.Duration
	id       uint32
	answered bool
	want     flows.Result
	bytes    uint64
}

func newWorld(seed uint64, most int) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0), conns: map[flows.Key]*conn{},
		settled: map[uint64]int{}, ended: map[uint64]int{}, weight: map[service.Name]int{}, thinned: map[service.Name]int{}}
	w.tracker = flows.New(most, seed, func(c flows.Change) {
		if c.Settled {
			w.settled[c.ID]++
			w.weight[c.Service] += c.Weight
		}
		if c.Finished {
			w.ended[c.ID]++
		}
	}, func(name service.Name, of int) { w.thinned[name] = of })
	return w
}

// begin makes a connection of a random kind.
func (w *world) begin(name service.Name) *conn {
	w.port++
	k := flows.Key{Protocol: service.TCP, Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(w.port >> 14), 1}),
		1024+w.port%16384), Dst: netip.MustParseAddrPort("10.96.0.1:80")}
	c := &conn{Start: flows.Start{Key: k, At: w.now, Seen: w.now, Rate: 1},
		to: flows.Owner{Service: name, Way: flows.ByClusterIP}, endpoint: netip.MustParseAddrPort("10.1.0.1:8080"),
		id: uint32(len(w.conns)), bytes: w.rng.Uint64N(1000)}
	switch w.rng.IntN(5) {
	case 0:
		c.dropped, c.want = true, flows.Dropped
	case 1:
		c.answer, c.reset, c.want = time.Millisecond, true, flows.Refused
		c.ends = c.answer
	case 2:
		c.want, c.ends = flows.Unanswered, 2*time.Minute
	case 3:
		c.Cause, c.Refused, c.want = "no-endpoints", true, flows.Refused
	default:
		c.answer = time.Duration(1 + w.rng.Int64N(int64(3*time.Second)))
		c.want, c.ends = flows.Answered, c.answer+time.Duration(w.rng.Int64N(int64(time.Minute)))
	}
	w.conns[k] = c
	w.tracker.Begin(c.Start, c.to)
	return c
}

// step lets time pass: answers come, and entries are asked for.
func (w *world) step(d time.Duration) {
	w.now = w.now.Add(d)
	for _, c := range w.conns {
		if c.answer > 0 && !c.answered && !w.now.Before(c.At.Add(c.answer)) {
			c.answered = true
			w.tracker.Answer(flows.Answer{Reply: flows.Key{Protocol: c.Protocol, Src: c.endpoint, Dst: c.Src},
				At: c.At.Add(c.answer), Refused: c.reset})
		}
	}
	for {
		list := w.tracker.Due(w.now, 7)
		if len(list) == 0 {
			return
		}
		for _, k := range list {
			w.tracker.Found(w.now, k, w.entry(w.conns[k]))
		}
	}
}

// entry is what the kernel says of a connection now.
func (w *world) entry(c *conn) *flows.Entry {
	age := w.now.Sub(c.At)
	switch {
	case c.dropped || c.Cause != "", c.reset && age >= c.answer, age >= c.ends+10*time.Second:
		return nil
	}
	e := &flows.Entry{ID: c.id, Endpoint: c.endpoint, Timeout: 2*time.Minute - age.Truncate(time.Second), PacketsFrom: 1}
	if c.want == flows.Answered {
		e.Timeout, e.Replied = 5*24*time.Hour, age >= c.answer
	}
	if age >= c.ends {
		e.Closing, e.Timeout = 10*time.Second, 10*time.Second-(age-c.ends).Truncate(time.Second)
		e.BytesFrom = c.bytes
	}
	return e
}

// TestResults: each connection is told of once as settled and once as ended, with the result, the time of the answer
// and the bytes that it had.
func TestResults(t *testing.T) {
	for seed := range uint64(50) {
		w := newWorld(seed, 10_000)
		for range 200 {
			w.begin(service.Name(fmt.Sprintf("default/s%d", w.rng.IntN(5))))
			w.step(time.Duration(w.rng.Int64N(int64(500 * time.Millisecond))))
		}
		for range 400 {
			w.step(time.Second)
		}
		list := w.tracker.List(0)
		if len(list) != len(w.conns) || w.tracker.Counts() != (flows.Counts{}) {
			t.Fatalf("seed %d: %d flows of %d connections, %+v", seed, len(list), len(w.conns), w.tracker.Counts())
		}
		for _, f := range list {
			c := w.conns[flows.Key{Protocol: service.TCP, Src: f.Client, Dst: f.Address}]
			if w.settled[f.ID] != 1 || w.ended[f.ID] != 1 || !f.Ended || f.Result != c.want || f.Service != c.to.Service ||
				f.Cause != c.Cause || f.Weight != 1 {
				t.Errorf("seed %d: settled %d times, ended %d times: %+v, want %+v", seed, w.settled[f.ID], w.ended[f.ID], f, c)
			}
			if c.answer > 0 && (f.AnswerSeconds == nil || *f.AnswerSeconds != c.answer.Seconds() || f.Endpoint != c.endpoint) {
				t.Errorf("seed %d: answer %v from %v, want %v", seed, f.AnswerSeconds, f.Endpoint, c.answer)
			}
			if late := f.Seconds - c.ends.Seconds(); f.Result == flows.Answered && (late < -1.1 || late > 1.1 ||
				f.BytesFrom != c.bytes) {
				t.Errorf("seed %d: lasted %v s with %d bytes, want %v, %d", seed, f.Seconds, f.BytesFrom, c.ends, c.bytes)
			}
		}
	}
}

// TestRepeated: first packets that a client repeats since they are dropped are one flow; one with the same ports after
// the end of the first connection is another.
func TestRepeated(t *testing.T) {
	w := newWorld(1, 100)
	var c *conn
	for c == nil || !c.dropped {
		w = newWorld(w.rng.Uint64(), 100)
		c = w.begin("default/web")
	}
	for _, pause := range []time.Duration{1, 2, 4, 8} {
		for range pause {
			w.step(time.Second)
		}
		again := c.Start
		again.At, again.Seen = w.now, w.now
		w.tracker.Begin(again, c.to)
	}
	w.step(100 * time.Millisecond)
	if list := w.tracker.List(0); len(list) != 1 || list[0].Result != flows.Dropped {
		t.Errorf("a repeated packet: %+v", list)
	}
	for range 100 {
		w.step(time.Second)
	}
	again := c.Start
	again.At, again.Seen = w.now, w.now
	w.tracker.Begin(again, c.to)
	if list := w.tracker.List(0); len(list) != 2 || !list[0].Ended {
		t.Errorf("a new connection: %+v", list)
	}
}

// TestCrowd: a Service with far more connections than can be remembered is thinned; what stays stands for all of its
// connections, within a tenth, and no connection of another Service is lost.
func TestCrowd(t *testing.T) {
	const most, crowd, few = 512, 20_000, 100
	for seed := range uint64(5) {
		w := newWorld(seed, most)
		for i := range crowd {
			w.begin("tenant/crowd")
			if i%(crowd/few) == 0 {
				w.begin("default/quiet")
			}
			if n := w.tracker.Counts().Open; n > most {
				t.Fatalf("seed %d: %d are open", seed, n)
			}
			w.now = w.now.Add(5 * time.Millisecond)
			if i%20 == 0 {
				w.step(0)
			}
			if i%2000 == 0 {
				for k, c := range w.conns { // the world has to be fast
					if w.now.Sub(c.At) > 4*time.Minute {
						delete(w.conns, k)
					}
				}
			}
		}
		for range 300 {
			w.step(time.Second)
		}
		if w.weight["default/quiet"] != few || w.thinned["default/quiet"] != 0 {
			t.Errorf("seed %d: %d quiet connections, want %d; thinned to %d", seed, w.weight["default/quiet"], few,
				w.thinned["default/quiet"])
		}
		if w.thinned["tenant/crowd"] < 2 {
			t.Errorf("seed %d: the crowd was not thinned", seed)
		}
		if got := w.weight["tenant/crowd"] + int(w.tracker.Counts().Lost); got < crowd*85/100 || got > crowd*115/100 {
			t.Errorf("seed %d: %d connections of the crowd, want about %d (%+v)", seed, got, crowd, w.tracker.Counts())
		}
	}
}

// TestHeld: an entry that is late, since another program holds the first packet, is no drop.
func TestHeld(t *testing.T) {
	w := newWorld(1, 100)
	var c *conn
	for c == nil || c.want != flows.Answered {
		w = newWorld(w.rng.Uint64(), 100)
		c = w.begin("default/web")
	}
	c.dropped, c.answer, c.ends = true, 3*time.Second, 2*time.Minute
	for range 20 {
		w.step(100 * time.Millisecond)
	}
	if list := w.tracker.List(0); len(list) != 1 || list[0].Result != flows.Waiting || len(w.settled) != 0 {
		t.Errorf("while it is held: %+v, settled %v", list, w.settled)
	}
	c.dropped = false
	for range 20 {
		w.step(100 * time.Millisecond)
	}
	if list := w.tracker.List(0); len(list) != 1 || list[0].Result != flows.Answered || w.settled[list[0].ID] != 1 {
		t.Errorf("after that: %+v, settled %v", list, w.settled)
	}
}

// TestRetry: a connection whose entry could not be read is asked for again, and ends as others do.
func TestRetry(t *testing.T) {
	w := newWorld(1, 100)
	for range 20 {
		w.begin("default/web")
	}
	for range 10 {
		w.now = w.now.Add(time.Second)
		for _, k := range w.tracker.Due(w.now, 64) {
			w.tracker.Retry(w.now, k)
		}
	}
	for range 300 {
		w.step(time.Second)
	}
	if n := w.tracker.Counts().Open; n != 0 || len(w.ended) != len(w.conns) || !w.tracker.Next().IsZero() {
		t.Errorf("%d open, %d of %d ended, next %v", n, len(w.ended), len(w.conns), w.tracker.Next())
	}
}

// TestThinnedAgain: what has its weight from an earlier thinning keeps it when the level comes back, so the estimate
// stays right.
func TestThinnedAgain(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(seed, 64)
		long := func(n int) {
			for range n {
				c := w.begin("tenant/crowd")
				c.Cause, c.dropped, c.reset, c.want, c.answer, c.ends = "", false, false, flows.Answered, time.Second, time.Hour
			}
		}
		bound := 0
		for range 6 { // each time most of them end, and after a time of calm the level falls
			long(200)
			bound = max(bound, w.thinned["tenant/crowd"])
			for range 10 {
				w.step(time.Second)
			}
			i := 0
			for _, c := range w.conns {
				if i++; i%8 != 0 {
					c.ends = min(c.ends, w.now.Sub(c.At))
				}
			}
			for range 90 {
				w.step(time.Second)
			}
		}
		for _, f := range w.tracker.List(0) {
			if f.Weight > bound {
				t.Errorf("seed %d: weight %d, but no level was above 1/%d", seed, f.Weight, bound)
			}
		}
	}
}
