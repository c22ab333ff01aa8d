package flows_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
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
	silent  []*conn // of these, those that will still be answered
	settled map[uint64]int
	ended   map[uint64]int
	weight  map[service.Name]int
	results map[service.Name]map[flows.Result]int
	// late is the most time from when a result could be known until it is told of.
	late    time.Duration
	thinned map[service.Name]int
	port    uint32
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
	want     flows.Result
	bytes    uint64
}

func newWorld(seed uint64, most int) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0), conns: map[flows.Key]*conn{},
		settled: map[uint64]int{}, ended: map[uint64]int{}, weight: map[service.Name]int{}, thinned: map[service.Name]int{},
		results: map[service.Name]map[flows.Result]int{}}
	w.tracker = flows.New(most, seed, func(c flows.Change) {
		if c.Settled {
			w.settled[c.ID]++
			w.weight[c.Service] += c.Weight
			if w.results[c.Service] == nil {
				w.results[c.Service] = map[flows.Result]int{}
			}
			w.results[c.Service][c.Result] += c.Weight
			w.late = max(w.late, w.now.Sub(c.Begin.Add(w.conns[flows.Key{Protocol: service.TCP, Src: c.Client,
				Dst: c.Address}].known())))
		}
		if c.Finished {
			w.ended[c.ID]++
		}
	}, func(name service.Name, of int) { w.thinned[name] = of })
	return w
}

// list has the flows in the order of their changes.
func (w *world) list() []flows.Flow {
	bySeq := func(a, b flows.Flow) int { return cmp.Compare(a.Seq, b.Seq) }
	return slices.SortedFunc(slices.Values(w.tracker.List(0)), bySeq)
}

// known is how long after its begin a connection's result can be known.
func (c *conn) known() time.Duration {
	switch c.want {
	case flows.Dropped, flows.Unanswered:
		return flows.Patience
	}
	return c.answer
}

// begin has a connection of a random kind begin.
func (w *world) begin(name service.Name) *conn {
	c := w.draw(name)
	w.add(c)
	return c
}

// draw makes a connection of a random kind.
func (w *world) draw(name service.Name) *conn {
	w.port++
	k := flows.Key{Protocol: service.TCP, Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(w.port >> 22),
		byte(w.port >> 14), 1}), uint16(1024+w.port%16384)), Dst: netip.MustParseAddrPort("10.96.0.1:80")}
	c := &conn{Start: flows.Start{Key: k, At: w.now, Seen: w.now, Rate: 1},
		to: flows.Owner{Service: name, Way: flows.ByClusterIP}, endpoint: netip.MustParseAddrPort("10.1.0.1:8080"),
		id: w.port, bytes: w.rng.Uint64N(1000)}
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
		c.answered(time.Duration(1+w.rng.Int64N(int64(3*time.Second))), time.Duration(w.rng.Int64N(int64(time.Minute))))
	}
	return c
}

// answered makes it one that is answered, and ends so long after that.
func (c *conn) answered(after, lasts time.Duration) {
	c.Cause, c.Refused, c.dropped, c.reset = "", false, false, false
	c.answer, c.ends, c.want = after, after+lasts, flows.Answered
}

// add has a connection begin.
func (w *world) add(c *conn) {
	w.conns[c.Key] = c
	if c.answer > 0 {
		w.silent = append(w.silent, c)
	}
	w.tracker.Begin(c.Start, c.to)
}

// step lets time pass: answers come, and entries are asked for.
func (w *world) step(d time.Duration) {
	w.now = w.now.Add(d)
	w.answers()
	for w.ask(7) > 0 {
	}
}

// answers has all answers come that are due.
func (w *world) answers() {
	w.silent = slices.DeleteFunc(w.silent, func(c *conn) bool {
		due := !w.now.Before(c.At.Add(c.answer))
		if due {
			w.tracker.Answer(flows.Answer{Reply: flows.Key{Protocol: c.Protocol, Src: c.endpoint, Dst: c.Src},
				At: c.At.Add(c.answer), Seen: w.now, Refused: c.reset})
		}
		return due
	})
}

// ask asks for entries that are due, so many at most, and says how many there were.
func (w *world) ask(most int) int {
	list := w.tracker.Due(w.now, most)
	for _, k := range list {
		w.tracker.Found(w.now, k, w.entry(w.conns[k]))
	}
	return len(list)
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
		list := w.list()
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

// TestRepeated: first packets that a client repeats since they are dropped, by the rules or by others, are one flow;
// one with the same ports after the end of the first connection is another.
func TestRepeated(t *testing.T) {
	for _, cause := range []string{"", "outside-source-ranges"} {
		w := newWorld(1, 100)
		c := w.draw("default/web")
		c.answered(0, 0)
		c.dropped, c.want, c.Cause = true, flows.Dropped, cause
		w.add(c)
		for _, pause := range []time.Duration{1, 2, 4, 8, 16} {
			for range pause {
				w.step(time.Second)
			}
			w.again(c)
		}
		for range 5 {
			w.step(100 * time.Millisecond)
		}
		if list := w.list(); len(list) != 1 || list[0].Result != flows.Dropped || list[0].Cause != cause ||
			list[0].Ended {
			t.Errorf("%q: a repeated packet: %+v", cause, list)
		}
		for range 200 {
			w.step(time.Second)
		}
		w.again(c)
		if list := w.list(); len(list) != 2 || !list[0].Ended || list[0].Seconds != 31 {
			t.Errorf("%q: a new connection: %+v", cause, list)
		}
	}
}

// again has another first packet come with the addresses of a connection.
func (w *world) again(c *conn) {
	again := c.Start
	again.At, again.Seen = w.now, w.now
	w.tracker.Begin(again, c.to)
}

// TestSamePort: a client that connects from the same port each second is told of once for each connection, with the
// result and the time to the answer that it had.
func TestSamePort(t *testing.T) {
	const times = 4
	for want, reset := range map[flows.Result]bool{flows.Answered: false, flows.Refused: true} {
		w := newWorld(1, 100)
		c := w.draw("default/web")
		for i := range times {
			c.answered(time.Duration(i+1)*time.Millisecond, 500*time.Millisecond)
			c.reset, c.want, c.id = reset, want, uint32(i)
			c.At, c.Seen = w.now, w.now
			w.add(c)
			for range 10 {
				w.step(100 * time.Millisecond)
			}
		}
		for range 30 {
			w.step(time.Second)
		}
		list := w.list()
		if len(list) != times {
			t.Errorf("%s: %d flows: %+v", want, len(list), list)
		}
		for i, f := range list {
			if f.Result != want || f.AnswerSeconds == nil || *f.AnswerSeconds != float64(i+1)/1000 {
				t.Errorf("%s: %+v", want, f)
			}
		}
	}
}

// TestEnding: how long a connection lasted is right within a second where its entry's time-outs say when it ended, and
// never ends before its last packets, whatever time-outs the kernel has.
func TestEnding(t *testing.T) {
	const lasts = 40 * time.Second // packets each second, and then none
	for name, c := range map[string]struct {
		entry func(since time.Duration) *flows.Entry // since the last packet
		early time.Duration
	}{
		"a short time_wait": {func(since time.Duration) *flows.Entry {
			return &flows.Entry{Closing: 2 * time.Minute, Timeout: 30*time.Second - since}
		}, 9 * time.Second},
		"a state with a shorter time-out": {func(since time.Duration) *flows.Entry {
			return &flows.Entry{Timeout: 300*time.Second - since}
		}, 9 * time.Second},
		"a stream of UDP": {func(since time.Duration) *flows.Entry {
			return &flows.Entry{Timeout: 120*time.Second - since}
		}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1, 100)
			k := w.draw("default/web").Key
			start := w.now
			w.tracker = flows.New(100, 1, func(flows.Change) {}, func(service.Name, int) {})
			w.tracker.Begin(flows.Start{Key: k, At: start, Seen: start, Rate: 1}, flows.Owner{Service: "default/web"})
			for !w.tracker.Next().IsZero() {
				w.now = w.tracker.Next()
				age := w.now.Sub(start)
				e := &flows.Entry{Timeout: 5 * 24 * time.Hour}
				if name == "a stream of UDP" || age >= lasts {
					e = c.entry((age - min(age, lasts).Truncate(time.Second)).Truncate(time.Second))
				}
				e.Replied, e.PacketsFrom = true, uint64(min(age, lasts)/time.Second)
				for _, k := range w.tracker.Due(w.now, 1) {
					w.tracker.Found(w.now, k, e)
				}
			}
			got := time.Duration(w.list()[0].Seconds * float64(time.Second))
			if got < lasts-c.early || got > lasts+9*time.Second {
				t.Errorf("it lasted %v, want %v", got, lasts)
			}
		})
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

// TestTenant: a tenant opens 10,000 connections a second, to one Service or to thousands, which end at once, stay, or
// are refused by the rules (of which the kernel tells of 1,000 a second). Entries are asked for as by daemon/flows, 64
// each 5 ms. Of the others' connections each failure is told of with its result, none stands for another one, and it is
// told of within a second of when it is known; and what is remembered stays within its bound.
func TestTenant(t *testing.T) {
	const most, seconds, quietEvery = 4096, 12, 20
	for name, tenant := range map[string]struct {
		rate     int // in a millisecond
		services int
		make     func(*conn)
	}{
		"short":                     {10, 1, func(c *conn) { c.answered(time.Millisecond, 10*time.Millisecond) }},
		"staying":                   {10, 1, func(c *conn) { c.answered(time.Millisecond, time.Hour) }},
		"staying, of many Services": {10, 5000, func(c *conn) { c.answered(time.Millisecond, time.Hour) }},
		"refused": {1, 1, func(c *conn) {
			*c = conn{Start: c.Start, to: c.to, want: flows.Refused}
			c.Cause = "no-endpoints"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1, most)
			quiet := map[flows.Result]int{}
			tenants := 0
			for ms := range (seconds + 7) * 1000 { // the last seconds are for what is only known then
				w.now = w.now.Add(time.Millisecond)
				for range tenant.rate {
					if ms < seconds*1000 {
						c := w.draw(service.Name(fmt.Sprintf("tenant/crowd%d", tenants%tenant.services)))
						tenant.make(c)
						w.add(c)
						tenants++
					}
				}
				if ms%quietEvery == 0 && ms < seconds*1000 {
					quiet[w.begin("default/quiet").want]++
				}
				w.answers()
				if ms%5 == 0 {
					w.ask(64)
				}
				if n := w.tracker.Counts().Open; n > most {
					t.Fatalf("%d are open", n)
				}
			}
			if n := w.tracker.Counts().Lost; n > 0 || w.thinned["default/quiet"] > 0 {
				t.Errorf("%d are lost; the others are thinned to %d", n, w.thinned["default/quiet"])
			}
			for result, n := range quiet {
				if w.results["default/quiet"][result] != n {
					t.Errorf("%d of the others are told of as %s, want %d", w.results["default/quiet"][result], result, n)
				}
			}
			if w.late > time.Second {
				t.Errorf("one is told of %v late", w.late)
			}
			got := 0
			for i := range tenant.services {
				got += w.weight[service.Name(fmt.Sprintf("tenant/crowd%d", i))]
			}
			if got < tenants*85/100 || got > tenants*115/100 {
				t.Errorf("%d connections of the tenant, want about %d (%+v)", got, tenants, w.tracker.Counts())
			}
			if n := len(w.list()); n > 2*most {
				t.Errorf("%d are remembered", n)
			}
		})
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
	if list := w.list(); len(list) != 1 || list[0].Result != flows.Waiting || len(w.settled) != 0 {
		t.Errorf("while it is held: %+v, settled %v", list, w.settled)
	}
	c.dropped = false
	for range 20 {
		w.step(100 * time.Millisecond)
	}
	if list := w.list(); len(list) != 1 || list[0].Result != flows.Answered || w.settled[list[0].ID] != 1 {
		t.Errorf("after that: %+v, settled %v", list, w.settled)
	}
}

// TestUntimed: of a packet without a time of the kernel, as those of the node itself, nobody knows the time to the
// first answer. An answer whose time is before the process took that packet is one, and one that was taken before is
// not.
func TestUntimed(t *testing.T) {
	for want, reset := range map[flows.Result]bool{flows.Answered: false, flows.Refused: true} {
		w := newWorld(1, 100)
		c := w.draw("default/web")
		c.answered(time.Hour, time.Minute)
		c.reset = reset
		a := flows.Answer{Reply: flows.Key{Protocol: c.Protocol, Src: c.endpoint, Dst: c.Src}, At: w.now.Add(-time.Second)}
		a.Seen, a.Refused = w.now.Add(-time.Millisecond), !reset // of an earlier connection
		w.tracker.Answer(a)
		untimed := c.Start
		untimed.At = time.Time{}
		w.conns[c.Key] = c
		w.tracker.Begin(untimed, c.to)
		w.step(300 * time.Millisecond)
		if list := w.list(); len(list) != 1 || list[0].Result != flows.Waiting {
			t.Errorf("before the answer: %+v", list)
		}
		a.Seen, a.Refused = w.now, reset
		w.tracker.Answer(a)
		if list := w.list(); len(list) != 1 || list[0].Result != want || list[0].AnswerSeconds != nil ||
			!list[0].Begin.Equal(c.Seen) || list[0].Endpoint != c.endpoint {
			t.Errorf("%+v, want it %s", list, want)
		}
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
				c := w.draw("tenant/crowd")
				c.answered(time.Second, time.Hour)
				w.add(c)
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
		for _, f := range w.list() {
			if f.Weight > bound {
				t.Errorf("seed %d: weight %d, but no level was above 1/%d", seed, f.Weight, bound)
			}
		}
	}
}

// TestKept: a namespace whose connections end by the thousand drives none of another's out, and its own newest stay.
func TestKept(t *testing.T) {
	const most, few = 64, 10
	w := newWorld(1, most)
	for i := range 40 * few {
		if i%40 == 0 {
			w.begin("default/quiet")
		}
		w.begin("tenant/crowd")
		w.step(10 * time.Second)
	}
	for range 200 {
		w.step(time.Second)
	}
	count := map[service.Name]int{}
	for _, f := range w.list() {
		count[f.Service]++
	}
	if count["default/quiet"] != few || count["tenant/crowd"] != most-few {
		t.Errorf("%v are remembered, want %d quiet ones of %d", count, few, most)
	}
	if at := w.tracker.SinceIn("default"); !at.IsZero() || w.tracker.SinceIn("tenant") != w.tracker.Since() {
		t.Errorf("of the quiet ones none has been forgotten, but those since %v; of all those since %v, and of the tenant's "+
			"%v", at, w.tracker.Since(), w.tracker.SinceIn("tenant"))
	}
}

// TestSinceIn: what began in a namespace after its SinceIn is there, also where more namespaces have come and gone than
// there is room for.
func TestSinceIn(t *testing.T) {
	const most = 16
	later := 0
	for seed := range uint64(20) {
		w := newWorld(seed, most)
		for i := range 400 {
			space := fmt.Sprint("n", w.rng.IntN(4)) // or one of many
			if i%3 == 0 {
				space = fmt.Sprint("m", i)
			}
			w.begin(service.NewName(space, "web"))
			w.step(10 * time.Second)
		}
		known := map[flows.Key]bool{}
		for _, f := range w.list() {
			known[flows.Key{Protocol: service.TCP, Src: f.Client, Dst: f.Address}] = true
		}
		for k, c := range w.conns {
			space, _ := c.to.Service.Split()
			since := w.tracker.SinceIn(space)
			if since.After(w.tracker.Since()) {
				t.Errorf("seed %d: %s is remembered since %v, and all since %v", seed, space, since, w.tracker.Since())
			}
			if since.Before(w.tracker.Since()) {
				later++
			}
			if c.At.After(since) && !known[k] {
				t.Errorf("seed %d: one of %s that began %v after %v has been forgotten", seed, space, c.At.Sub(since), since)
			}
		}
	}
	if later == 0 {
		t.Error("no namespace is remembered for longer than all")
	}
}

// TestSince: what began after Since is there, however many have ended; and Since is no earlier than it has to be.
func TestSince(t *testing.T) {
	const most = 64
	for seed := range uint64(20) {
		w := newWorld(seed, most)
		for range 300 {
			w.begin("default/web")
			w.step(10 * time.Second)
		}
		if c := w.tracker.Counts(); c.Thinned+c.Lost > 0 {
			t.Fatalf("seed %d: %+v: another test's matter", seed, c)
		}
		since, after := w.tracker.Since(), 0
		known := map[flows.Key]bool{}
		for _, f := range w.list() {
			known[flows.Key{Protocol: service.TCP, Src: f.Client, Dst: f.Address}] = true
		}
		for k, c := range w.conns {
			if !c.At.After(since) {
				continue
			}
			if after++; !known[k] {
				t.Errorf("seed %d: one that began %v after %v has been forgotten", seed, c.At.Sub(since), since)
			}
		}
		if after < most/2 {
			t.Errorf("seed %d: only %d began after %v", seed, after, since)
		}
	}
}
