package conntrack

import (
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/model/service"
)

// shop returns a snapshot of a Service with two endpoints, or without the second one. lines are more lines of the
// Service.
func shop(t *testing.T, second bool, lines string) service.Snapshot {
	text := "node n1\n  address 192.168.0.2\n  host-address 192.168.0.2\nservice default/shop created " +
		"2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.1\n" + lines
	for _, port := range []string{"http tcp 80 node-port 30080", "dns udp 80"} {
		text += "  port " + port + "\n    endpoint 10.0.0.1:80 n1 ready serving\n"
		if second {
			text += "    endpoint 10.0.0.2:80 n1 ready serving\n"
		}
	}
	return parse(t, text)
}

const noShop = "node n1\n  address 192.168.0.2\n  host-address 192.168.0.2\n"

// TestDepartedConnections: what a Service asks for about connections to an endpoint that leaves, at the moment when it
// leaves, goes before the node's flag. Flows of UDP and unanswered ones never wait.
func TestDepartedConnections(t *testing.T) {
	const established = SeenReply | Assured
	tcp := []service.Protocol{service.TCP}
	option := func(value string) string { return "  option departed-connections " + value + "\n" }
	for name, test := range map[string]struct {
		flag []service.Protocol
		// before and after are lines of the Service before and after the endpoint leaves; "gone" stands for no Service.
		before, after string
		// since is the time until an established connection is stale; negative for never.
		since time.Duration
	}{
		"nobody asks":                   {nil, "", "", -1},
		"the flag":                      {tcp, "", "", 0},
		"keep":                          {nil, option("keep"), option("keep"), -1},
		"keep, the flag":                {tcp, option("keep"), option("keep"), -1},
		"cut":                           {nil, option("cut"), option("cut"), 0},
		"cut later":                     {nil, option("cut-after=30s"), option("cut-after=30s"), 30 * time.Second},
		"cut later, the flag":           {tcp, option("cut-after=30s"), option("cut-after=30s"), 30 * time.Second},
		"cut an hour later":             {nil, option("cut-after=1h"), option("cut-after=1h"), time.Hour},
		"asks as the endpoint leaves":   {nil, "", option("cut-after=5s"), 5 * time.Second},
		"asks no more":                  {nil, option("cut"), "", -1},
		"keep, the Service goes":        {tcp, option("keep"), "gone", -1},
		"cut, the Service goes":         {nil, option("cut"), "gone", 0},
		"cut later, the Service goes":   {nil, option("cut-after=30s"), "gone", 30 * time.Second},
		"nobody asks, the Service goes": {nil, "", "gone", -1},
		"the flag, the Service goes":    {tcp, "", "gone", 0},
	} {
		t.Run(name, func(t *testing.T) {
			after := func(lines string) service.Snapshot {
				if test.after == "gone" {
					return parse(t, noShop)
				}
				return shop(t, false, lines)
			}
			x, now := NewIndex(Options{Established: test.flag}), time.Unix(1_800_000_000, 0)
			x.Advance(now)
			x.Update(shop(t, true, test.before))
			scope := x.Update(after(test.after))
			flow := func(p service.Protocol, dst string, s Status) Flow {
				return dnated(p, "10.0.0.9", dst, "10.0.0.2:80", s)
			}
			is := func(f Flow, want bool) {
				t.Helper()
				if _, stale := x.Stale(f); stale != want {
					t.Errorf("%v: stale is %t", f, stale)
				}
			}
			is(flow(service.UDP, "10.96.0.1:80", established), true)
			is(flow(service.TCP, "10.96.0.1:80", 0), true)
			addresses := []string{"10.96.0.1:80", "192.168.0.2:30080"}
			for _, dst := range addresses {
				f := flow(service.TCP, dst, established)
				is(f, test.since == 0)
				if test.since == 0 && !scope.Selects(&f) {
					t.Errorf("%v is not in the scope %+v", f, scope)
				}
			}
			// The look for connections that have been given up comes whatever anybody asks for.
			look := timedCut{at: now.Add(2 * lookEvery)}
			if look.at != now.Add(test.since) {
				x.departed.timed = slices.DeleteFunc(x.departed.timed, func(c timedCut) bool { return c.at.Equal(look.at) })
				heap.Init(&x.departed.timed)
			}
			if next, planned := x.NextCut(); planned != (test.since > 0) || planned && !next.Equal(now.Add(test.since)) {
				t.Errorf("next is %v, %t", next, planned)
			}
			// The Service asks for something else, which concerns later departures, and the passes go on as ever.
			x.Update(after(map[bool]string{true: option("cut"), false: option("keep")}[test.since < 0]))
			for end := now.Add(max(test.since, 0)); now.Add(time.Minute).Before(end); now = now.Add(time.Minute) {
				x.Forget(x.Epoch())
				if scope := x.Advance(now); !scope.Empty() {
					t.Fatalf("%v before: %+v", end.Sub(now), scope)
				}
				is(flow(service.TCP, "10.96.0.1:80", established), false)
			}
			if test.since <= 0 {
				return
			}
			due, _ := x.NextCut()
			x.Advance(due.Add(-1))
			is(flow(service.TCP, "10.96.0.1:80", established), false)
			scope = x.Advance(due)
			x.Forget(x.Epoch()) // as at the beginning of the pass for it
			for _, dst := range addresses {
				f := flow(service.TCP, dst, established)
				if is(f, true); !scope.Selects(&f) {
					t.Errorf("%v is not in the scope %+v", f, scope)
				}
			}
			x.Advance(due.Add(formerFor))
			x.Forget(x.Epoch())
			if is(flow(service.TCP, "10.96.0.1:80", established), false); len(x.departed.from)+len(x.departed.order)+
				len(x.departed.timed) > 0 {
				t.Errorf("%d claims are still remembered", len(x.departed.from))
			}
		})
	}
}

// TestEndpointComesBack: an endpoint that is back when its connections would be cut keeps them, and each leaving counts
// anew.
func TestEndpointComesBack(t *testing.T) {
	const lines = "  option departed-connections cut-after=30s\n"
	x, t0 := NewIndex(Options{}), time.Unix(1_800_000_000, 0)
	f := dnated(service.TCP, "10.0.0.9", "10.96.0.1:80", "10.0.0.2:80", SeenReply|Assured)
	for _, step := range []struct {
		at    time.Duration
		there bool
		stale bool
	}{{0, true, false}, {1, false, false}, {20, true, false}, {31, true, false}, {40, false, false}, {69, false, false},
		{70, false, true}, {80, true, false}} {
		x.Advance(t0.Add(step.at * time.Second))
		x.Update(shop(t, step.there, lines))
		if _, stale := x.Stale(f); stale != step.stale {
			t.Errorf("after %d s: stale is %t", step.at, stale)
		}
	}
}

// TestPreserveUDP: with PreserveDuringTermination flows stay with an endpoint that terminates, whether it serves or
// not, and not with one that is only unready or gone. A Service that asks no more has them removed at once.
func TestPreserveUDP(t *testing.T) {
	const preserve = "  option service.kubernetes.io/udp-connection-handling PreserveDuringTermination\n"
	snapshot := func(lines, conditions string) service.Snapshot {
		text := "node n1\nservice default/sip created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.1\n" + lines +
			"  port sip udp 5060\n    endpoint 10.0.0.1:5060 n1 ready serving\n"
		if conditions != "gone" {
			text += "    endpoint 10.0.0.2:5060 n1" + conditions + "\n"
		}
		return parse(t, text)
	}
	for _, family := range []struct{ name, status string }{{"answered", "yes"}, {"one way", "no"}} {
		x := NewIndex(Options{})
		f := dnated(service.UDP, "10.0.0.9", "10.96.0.1:5060", "10.0.0.2:5060", map[string]Status{"yes": SeenReply,
			"no": 0}[family.status])
		for i, step := range []struct {
			lines, conditions string
			stale             bool
		}{
			{preserve, " ready serving", false},
			{preserve, " serving terminating", false},
			{preserve, " terminating", false},
			{"", " terminating", true},
			{preserve, " terminating", false},
			{preserve, "", true},
			{preserve, " ready serving", false},
			{preserve, " terminating", false},
			{preserve, "gone", true},
			{"", " ready serving", false},
			{"", " terminating", true},
		} {
			_, before := x.Stale(f)
			scope := x.Update(snapshot(step.lines, step.conditions))
			_, stale := x.Stale(f)
			if stale != step.stale {
				t.Errorf("%s, step %d: stale is %t", family.name, i, stale)
			}
			if stale && !before && !scope.Selects(&f) {
				t.Errorf("%s, step %d: not in the scope %+v", family.name, i, scope)
			}
		}
	}
}

// TestCleanerCutsLater: the Cleaner removes the connections when the time has come, without any sync. A new process
// that knows an endpoint only by the connections counts the time from its first pass on; one that asks for a cut at
// once has it.
func TestCleanerCutsLater(t *testing.T) {
	for name, test := range map[string]struct {
		option    string
		restarted bool
		left      time.Duration // how long the connection stays; 0 for not at all
	}{
		"later":                 {"cut-after=30s", false, 30 * time.Second},
		"much later":            {"cut-after=1h", false, time.Hour},
		"after a restart":       {"cut-after=30s", true, 30 * time.Second},
		"long after a restart":  {"cut-after=20m", true, 20 * time.Minute},
		"at once":               {"cut", false, 0},
		"at once, by a restart": {"cut", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lines := "  option departed-connections " + test.option + "\n"
				f := dnated(service.TCP, "10.0.0.9", "10.96.0.1:80", "10.0.0.2:80", SeenReply|Assured)
				other := dnated(service.TCP, "10.0.0.9", "10.96.0.1:80", "10.0.0.1:80", SeenReply|Assured)
				table := &slowTable{entries: 100, dump: time.Millisecond, flows: []Flow{f, other}}
				b := start(t, table)
				if !test.restarted {
					b.SyncDone(shop(t, true, lines), true)
					b.after(10*time.Second, time.Now())
				}
				left := func() (n int) {
					table.set(func() { n = len(table.flows) })
					return n
				}
				b.SyncDone(shop(t, false, lines), test.restarted)
				if test.left > 0 {
					b.after(test.left-time.Second, time.Now())
					if left() != 2 {
						t.Fatal("too early")
					}
				}
				b.after(2*time.Second, time.Now())
				if left() != 1 {
					t.Error("the connection to the departed endpoint is not cut")
				}
				passes := b.ended()
				b.after(24*time.Hour, time.Now())
				if left() != 1 || b.ended()-passes > 600 {
					t.Errorf("%d connections and %d passes in a day", left(), b.ended()-passes)
				}
			})
		})
	}
}

// TestPreserveUDPPackets: with PreserveDuringTermination a client's datagrams from the same port reach the endpoint
// that terminates and does not serve any more, until it is gone, and those from another port the other endpoint.
func TestPreserveUDPPackets(t *testing.T) {
	families(t, func(l *live) {
		services := func(option, one string) string {
			text := bystander + "service default/sip created 2026-01-01T00:00:00Z\n  cluster-ip CLUSTER\n" + option +
				"  port sip udp 53\n"
			if one != "gone" {
				text += "    endpoint ONE-POD node" + one + "\n"
			}
			if one != " ready serving" {
				text += "    endpoint TWO-POD node ready serving\n"
			}
			return text
		}
		const preserve = "  option service.kubernetes.io/udp-connection-handling PreserveDuringTermination\n"
		l.become(services(preserve, " ready serving"), "")
		l.standBy()
		c := l.dial(l.client, l.at("CLUSTER", 53))
		c.wantAnswer("one")
		l.become(services(preserve, " serving terminating"), "")
		c.wantAnswer("one")
		l.become(services(preserve, " terminating"), "")
		c.wantAnswer("one")
		l.dial(l.client, l.at("CLUSTER", 53)).wantAnswer("two")
		l.become(services("", " terminating"), "endpoint gone: 1")
		c.wantAnswer("two")

		l.become(services(preserve, " ready serving"), "endpoint gone: 2")
		c.wantAnswer("one")
		l.become(services(preserve, " terminating"), "")
		c.wantAnswer("one")
		l.become(services(preserve, "gone"), "endpoint gone: 1")
		c.wantAnswer("two")
	})
}

// TestPlannedCutsAreSmall: a Service that replaces all of its endpoints again and again does not fill the memory with
// planned cuts.
func TestPlannedCutsAreSmall(t *testing.T) {
	x, now := NewIndex(Options{}), time.Unix(1_800_000_000, 0)
	snapshot := func(round int) service.Snapshot {
		var text strings.Builder
		text.WriteString(noShop + "service default/shop created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.1\n  option " +
			"departed-connections cut-after=1h\n  port http tcp 80\n")
		for i := range 200 {
			fmt.Fprintf(&text, "    endpoint 10.%d.0.%d:80 n1 ready serving\n", round%2, i+1)
		}
		return parse(t, text.String())
	}
	a, b := snapshot(0), snapshot(1)
	for i := range 500 {
		x.Advance(now.Add(time.Duration(i) * time.Second))
		x.Update([]service.Snapshot{a, b}[i%2])
		x.Cover(x.Epoch())
	}
	n := 0
	for _, c := range x.departed.timed {
		n += c.endpoints.Len()
	}
	if n > maxKept {
		t.Errorf("%d endpoints in %d planned cuts", n, len(x.departed.timed))
	}
}

// TestLaterKeepOutlivesEarlierCut: an endpoint that came back, and left again when the Service wanted connections kept,
// keeps them: the first departure does not count again when the second one is forgotten.
func TestLaterKeepOutlivesEarlierCut(t *testing.T) {
	x, t0 := NewIndex(Options{}), time.Unix(1_800_000_000, 0)
	f := dnated(service.TCP, "10.0.0.9", "10.96.0.1:80", "10.0.0.2:80", SeenReply|Assured)
	const cut, keep = "  option departed-connections cut-after=1h\n", "  option departed-connections keep\n"
	x.Advance(t0)
	x.Update(shop(t, true, cut))
	x.Update(shop(t, false, cut))
	x.Advance(t0.Add(10 * time.Minute))
	x.Update(shop(t, true, keep))
	x.Advance(t0.Add(20 * time.Minute))
	x.Update(shop(t, false, keep))
	for m := 21; m < 90; m++ {
		x.Advance(t0.Add(time.Duration(m) * time.Minute))
		if m%5 == 0 {
			x.Forget(x.Epoch())
			x.Update(shop(t, false, keep))
		}
		if _, stale := x.Stale(f); stale {
			t.Fatalf("stale after %d min", m)
		}
	}
}

// TestNoteOtherPortOfRanges: a connection to ranges that leads to another port is remembered once, and cut.
func TestNoteOtherPortOfRanges(t *testing.T) {
	x, now := NewIndex(Options{}), time.Unix(1_800_000_000, 0)
	x.Advance(now)
	x.Update(parse(t, noShop+"service default/shop created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.1\n  option "+
		"departed-connections cut-after=30s\n  option port-ranges 8000-9000/TCP\n  port http tcp 80\n    endpoint "+
		"10.0.0.1:80 n1 ready serving\n  port ranges tcp ranges=8000-9000\n    endpoint 10.0.0.1:0 n1 ready serving\n"))
	x.Presume()
	for dst, to := range map[string]string{"10.96.0.1:8080": "10.0.0.2:8080", "10.96.0.1:8081": "10.0.0.2:80"} {
		f := dnated(service.TCP, "10.0.0.9", dst, to, SeenReply|Assured)
		before := len(x.departed.order)
		for range 3 {
			if _, stale := x.Stale(f); stale {
				t.Fatalf("%v is stale", f)
			}
			x.Note(&f)
		}
		if n := len(x.departed.order) - before; n != 1 {
			t.Errorf("%v: remembered %d times", f, n)
		}
	}
	x.Cover(x.Epoch())
	x.Advance(now.Add(30 * time.Second))
	for dst, to := range map[string]string{"10.96.0.1:8080": "10.0.0.2:8080", "10.96.0.1:8081": "10.0.0.2:80"} {
		f := dnated(service.TCP, "10.0.0.9", dst, to, SeenReply|Assured)
		if _, stale := x.Stale(f); !stale {
			t.Errorf("%v is not stale", f)
		}
	}
}

// TestCutSparesTheLiving: connections to an endpoint that a Service has, by whatever way, go on, although another way
// has lost it.
func TestCutSparesTheLiving(t *testing.T) {
	const established = SeenReply | Assured
	shop := func(name, lines string) string {
		return "service default/" + name + " created 2026-01-01T00:00:00Z\n  cluster-ip " +
			map[string]string{"shop": "10.96.0.1", "other": "10.96.0.2"}[name] + "\n  option departed-connections cut\n" + lines
	}
	const (
		port   = "  port http tcp 8080\n    endpoint 10.0.0.1:8080 n1 ready serving\n"
		ranges = "  port web tcp 80\n    endpoint 10.0.0.1:8080 n1 ready serving\n  port ranges tcp ranges=8000-9000\n    " +
			"endpoint 10.0.0.1:0 n1 ready serving\n"
		empty = "  port http tcp 8080\n"
	)
	f := dnated(service.TCP, "10.0.0.9", "10.96.0.1:8080", "10.0.0.1:8080", established)
	for name, steps := range map[string][]string{
		"from a port to ranges":       {shop("shop", port), shop("shop", ranges)},
		"from ranges to a port":       {shop("shop", ranges), shop("shop", port)},
		"ranges change":               {shop("shop", ranges), shop("shop", strings.ReplaceAll(ranges, "8000", "8080"))},
		"the Service is made again":   {shop("shop", port), "", shop("shop", port)},
		"as ranges":                   {shop("shop", port), "", shop("shop", ranges)},
		"another Service has lost it": {shop("other", port) + shop("shop", port), shop("other", empty) + shop("shop", port)},
		"another Service is gone":     {shop("other", port) + shop("shop", ranges), shop("shop", ranges)},
		"the endpoint comes back":     {shop("shop", port), shop("shop", empty), shop("shop", port)},
	} {
		x := NewIndex(Options{})
		x.Advance(time.Unix(1_800_000_000, 0))
		for _, step := range steps {
			x.Update(parse(t, noShop+step))
		}
		if reason, stale := x.Stale(f); stale {
			t.Errorf("%s: %s", name, reason)
		}
		x.Update(parse(t, noShop+shop("shop", empty)))
		if _, stale := x.Stale(f); !stale {
			t.Errorf("%s, then the endpoint leaves: not stale", name)
		}
	}
}

// TestLaterKeepByRanges: the same where the port has moved to ranges meanwhile.
func TestLaterKeepByRanges(t *testing.T) {
	x, t0 := NewIndex(Options{}), time.Unix(1_800_000_000, 0)
	f := dnated(service.TCP, "10.0.0.9", "10.96.0.1:8080", "10.0.0.1:8080", SeenReply|Assured)
	shop := func(option, ports string) service.Snapshot {
		return parse(t, noShop+"service default/shop created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.1\n  option "+
			"departed-connections "+option+"\n"+ports)
	}
	x.Advance(t0)
	x.Update(shop("cut-after=1h", "  port http tcp 8080\n    endpoint 10.0.0.1:8080 n1 ready serving\n"))
	x.Update(shop("cut-after=1h", "  port web tcp 80\n    endpoint 10.0.0.1:8080 n1 ready serving\n  port ranges tcp "+
		"ranges=8000-9000\n    endpoint 10.0.0.1:0 n1 ready serving\n"))
	x.Advance(t0.Add(20 * time.Minute))
	x.Update(shop("keep", "  port web tcp 80\n  port ranges tcp ranges=8000-9000\n"))
	for m := 21; m < 90; m++ {
		x.Advance(t0.Add(time.Duration(m) * time.Minute))
		if m%5 == 0 {
			x.Forget(x.Epoch())
			x.Update(shop("keep", "  port web tcp 80\n  port ranges tcp ranges=8000-9000\n"))
		}
		if _, stale := x.Stale(f); stale {
			t.Fatalf("stale after %d min", m)
		}
	}
}
