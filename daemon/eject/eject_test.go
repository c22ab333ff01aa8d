package eject

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/model/ejection"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/lib/testnet"
)

// table has connections without an answer to some endpoints, and a walk through it takes cpu.
type table struct {
	mu    sync.Mutex
	to    []netip.AddrPort
	cpu   time.Duration
	looks []time.Time
	err   error
}

// change changes what the table has, and returns the number of looks before.
func (t *table) change(to []netip.AddrPort, err error) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to, t.err = to, err
	return len(t.looks)
}

func (t *table) Unanswered(_ context.Context, yield func(conntrack.Flow) error) (time.Duration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looks = append(t.looks, time.Now())
	for i, a := range t.to {
		if err := yield(conntrack.Flow{ID: uint32(i), Reply: conntrack.Tuple{Src: a}}); err != nil {
			return 0, err
		}
	}
	return t.cpu, t.err
}

// newEjector makes one whose own work takes no CPU time: the clock of a bubble has nothing to do with it.
func newEjector(c Config) *Ejector {
	e := New(c)
	e.cpu = func() time.Duration { return 0 }
	return e
}

func snapshot(nodes ...string) service.Snapshot {
	s := &service.Service{Name: "shop/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	var list []service.Endpoint
	for i, n := range nodes {
		list = append(list, service.Endpoint{Addr: endpointAt(i), Node: n, Ready: true, Serving: true})
	}
	s.Ports = []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}}
	b := snapshots.NewBuilder(service.Node{Name: "own"})
	b.Set(s)
	return b.Snapshot()
}

func endpointAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8080)
}

// By the clock of a bubble: looks at rest keep to 0.2 % of a core, and others to a second and 1 %. An endpoint that
// does not answer is left out, and comes back.
func TestEjector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		connections := &table{cpu: 10 * time.Millisecond}
		var mu sync.Mutex
		dead := map[netip.AddrPort]bool{endpointAt(1): true}
		var set []service.Adjustments
		e := newEjector(Config{
			Table: connections, Mode: service.EjectOn, Observe: func(Report) {},
			Set: func(e service.Adjustments) { set = append(set, e) },
			Connect: func(ctx context.Context, to []netip.AddrPort) ejection.Answer {
				mu.Lock()
				silent := dead[to[0]]
				mu.Unlock()
				if !silent {
					return ejection.Answered
				}
				time.Sleep(ejection.Patience)
				return ejection.Unanswered
			},
		})
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		e.Notify(snapshot("own", "a", "b", "c"))
		time.Sleep(101 * time.Second)
		if n := connections.change(slices.Repeat([]netip.AddrPort{endpointAt(1)}, 5), nil); n < 19 || n > 22 {
			t.Errorf("%d looks of 10 ms in 101 s at rest, want 20", n)
		}
		time.Sleep(9 * time.Second) // a look at rest, one more a second later, and two tries of a second
		synctest.Wait()
		if len(set) != 1 || set[0].At("shop/web").Find(&service.Port{Protocol: service.TCP, Port: 80}, endpointAt(1)) == nil {
			t.Fatalf("left out: %v", set)
		}
		before := connections.change(nil, nil)
		time.Sleep(100 * time.Second)
		if n := connections.change(nil, nil) - before; n > 131 {
			t.Errorf("%d looks of 10 ms in 100 s", n)
		}
		mu.Lock()
		dead = nil
		mu.Unlock()
		time.Sleep(14 * time.Second)
		synctest.Wait()
		if len(set) != 2 || set[1].Len() != 0 {
			t.Errorf("left out in the end: %v", set)
		}
		// A table that cannot be read is not read again and again.
		before = connections.change(nil, syscall.EPERM)
		time.Sleep(5 * time.Minute)
		if n := connections.change(nil, nil) - before; n > 12 {
			t.Errorf("%d looks that fail in five minutes", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A repeated packet brings the next look forward, so that an endpoint is left out 1.3 s after it. Looks come no more
// often than the budget allows, whatever is repeated, and at rest they come rarely. Without the counter they come as
// often as before.
func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		connections := &table{cpu: 10 * time.Millisecond}
		var mu sync.Mutex
		var count uint64
		var failure error
		left := make(chan time.Time, 1)
		reports := 0
		e := newEjector(Config{
			Table: connections, Mode: service.EjectOn,
			Observe: func(r Report) {
				mu.Lock()
				defer mu.Unlock()
				if r.Err != nil {
					reports++
				}
			},
			Set: func(service.Adjustments) { left <- time.Now() },
			Repeats: func() (uint64, error) {
				mu.Lock()
				defer mu.Unlock()
				return count, failure
			},
			Connect: func(_ context.Context, to []netip.AddrPort) ejection.Answer {
				if to[0] != endpointAt(1) {
					return ejection.Answered
				}
				time.Sleep(ejection.Patience)
				return ejection.Unanswered
			},
		})
		repeat := func(n uint64, err error) {
			mu.Lock()
			defer mu.Unlock()
			count, failure = count+n, err
		}
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		e.Notify(snapshot("own", "a", "b", "c"))
		time.Sleep(100 * time.Second)
		if n := connections.change(nil, nil); n < 3 || n > 4 {
			t.Errorf("%d looks in 100 s at rest, want one every 30 s", n)
		}
		before := connections.change(nil, nil)
		for range 1000 { // somebody repeats packets, and nothing is unanswered
			repeat(1, nil)
			time.Sleep(100 * time.Millisecond)
		}
		if n := connections.change(nil, nil) - before; n < 60 || n > 131 {
			t.Errorf("%d looks of 10 ms in 100 s of repeated packets", n)
		}
		time.Sleep(time.Minute)
		repeat(0, syscall.EPERM)
		time.Sleep(time.Minute)
		mu.Lock()
		said := reports
		mu.Unlock()
		if said == 0 {
			t.Error("nothing is said of a counter that cannot be read")
		}
		before = connections.change(nil, nil)
		time.Sleep(100 * time.Second)
		if n := connections.change(nil, nil) - before; n < 17 || n > 22 {
			t.Errorf("%d looks of 10 ms in 100 s without the counter, want 20", n)
		}
		repeat(0, nil)
		time.Sleep(time.Minute)
		connections.change(slices.Repeat([]netip.AddrPort{endpointAt(1)}, 5), nil)
		repeat(1, nil)
		began := time.Now()
		if took := (<-left).Sub(began); took > 1500*time.Millisecond {
			t.Errorf("left out %v after the first repeated packet", took)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Looks and the node's own connects keep to 1 % of a core together, also while a hundred endpoints are dead and left
// out.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var nodes []string
		var dead []netip.AddrPort
		for i := range 240 {
			nodes = append(nodes, fmt.Sprint("node-", i%3))
			if i%3 == 1 {
				dead = append(dead, endpointAt(i))
			}
		}
		connections := &table{cpu: 20 * time.Millisecond}
		var connects atomic.Int64
		left := 0
		e := newEjector(Config{
			Table: connections, Mode: service.EjectOn, Observe: func(r Report) {
				if left != len(r.Left) {
					t.Log(time.Now(), len(r.Left), r.Held, len(r.Added), len(r.Returned))
				}
				left = len(r.Left)
			},
			Set: func(service.Adjustments) {},
			Connect: func(_ context.Context, to []netip.AddrPort) ejection.Answer {
				connects.Add(1)
				if !slices.Contains(dead, to[0]) {
					return ejection.Answered
				}
				time.Sleep(ejection.Patience)
				return ejection.Unanswered
			},
		})
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		e.Notify(snapshot(nodes...))
		connections.change(dead, nil)
		const seconds = 200
		time.Sleep(seconds * time.Second)
		synctest.Wait()
		looks := connections.change(nil, nil)
		spent := time.Duration(looks)*connections.cpu + time.Duration(connects.Load())*askCost
		// A look may begin while the budget has something left, and all that it leads to be begun.
		if most := seconds*time.Second/rest + burst + debt + connections.cpu + 128*askCost; spent > most {
			t.Errorf("%d looks and %d connects: %v of CPU time in %d s, want at most %v", looks, connects.Load(), spent, seconds,
				most)
		}
		if left != len(dead) {
			t.Errorf("%d left out, want %d", left, len(dead))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(ejection.Patience) // the last connects
	})
}

// With mode Report looks at rest are rare, until one finds something, or a Service is to be without such endpoints.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		connections := &table{cpu: 10 * time.Millisecond}
		var noticed time.Duration
		start := time.Now()
		e := newEjector(Config{
			Table: connections, Mode: service.EjectReport, Set: func(service.Adjustments) {},
			Observe: func(r Report) {
				if len(r.Added) > 0 {
					noticed = time.Since(start)
				}
			},
			Connect: func(_ context.Context, to []netip.AddrPort) ejection.Answer {
				if to[0] != endpointAt(1) {
					return ejection.Answered
				}
				time.Sleep(ejection.Patience)
				return ejection.Unanswered
			},
		})
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		s := snapshot("own", "a", "b", "c")
		e.Notify(s)
		time.Sleep(100 * time.Second)
		if n := connections.change(slices.Repeat([]netip.AddrPort{endpointAt(1)}, 5), nil); n != 4 {
			t.Errorf("%d looks in 100 s at rest, want 4", n)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if noticed < 120*time.Second || noticed > 125*time.Second {
			t.Errorf("the endpoint that does not answer is reported after %v, want the look of 120 s and two tries", noticed)
		}
		connections.change(nil, nil)
		urgent := s.Services.At("shop/web").Clone()
		urgent.Options.Eject = service.EjectOn
		s.Services = s.Services.Set(urgent.Name, urgent)
		e.Notify(s)
		time.Sleep(time.Minute) // until the tries of the machine have an answer
		before := connections.change(nil, nil)
		time.Sleep(30 * time.Second)
		if n := connections.change(nil, nil) - before; n < 5 {
			t.Errorf("%d looks in 30 s with a Service of mode on", n)
		}
		cancel()
		<-done
		time.Sleep(ejection.Patience) // the last connects
	})
}

// With mode Off nothing is read, and the process sleeps, until a Service asks for it, and after none asks any more.
func TestOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		connections := &table{}
		var heard, worked atomic.Int64
		e := newEjector(Config{Table: connections, Set: func(service.Adjustments) {}, Observe: func(Report) {},
			Repeats: func() (uint64, error) { heard.Add(1); return 0, nil }})
		e.cpu = func() time.Duration { worked.Add(1); return 0 }
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		quiet := snapshot("own", "a", "b")
		isQuiet := func() {
			t.Helper()
			e.Notify(quiet)
			time.Sleep(2 * time.Second) // a look may be due
			looks, calls, steps := connections.change(nil, nil), heard.Load(), worked.Load()
			time.Sleep(time.Minute)
			if n, c := connections.change(nil, nil), heard.Load(); n > looks || c > calls || worked.Load() > steps {
				t.Errorf("%d looks, %d times heard, %d steps", n-looks, c-calls, worked.Load()-steps)
			}
		}
		isQuiet()
		asks := quiet
		s := asks.Services.At("shop/web").Clone()
		s.Options.Eject = service.EjectReport
		asks.Services = asks.Services.Set(s.Name, s)
		e.Notify(asks)
		time.Sleep(10 * time.Second)
		if connections.change(nil, nil) == 0 || heard.Load() == 0 {
			t.Error("no look, although a Service asks for it")
		}
		e.Notify(quiet)
		time.Sleep(time.Minute) // the next look is the last
		isQuiet()
		cancel()
		<-done
	})
}

// Before the first snapshot there is nothing to wake for.
func TestBeforeSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var first time.Duration
		e := newEjector(Config{Table: &table{}, Mode: service.EjectOn, Set: func(service.Adjustments) {},
			Observe: func(r Report) {
				if first == 0 {
					first = r.CPU
				}
			}})
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		time.Sleep(time.Minute)
		e.Notify(snapshot("own", "a"))
		time.Sleep(time.Second)
		cancel()
		<-done
		if first == 0 || first > 3*wakeCost {
			t.Errorf("%v of CPU time until the first look, want that of a wake or two", first)
		}
	})
}

// What connect's errors say: a refusal is an answer, and a failure of this node's own says nothing.
func TestClassify(t *testing.T) {
	for err, want := range map[error]ejection.Answer{
		syscall.ECONNREFUSED: ejection.Answered, syscall.ECONNRESET: ejection.Answered,
		context.DeadlineExceeded: ejection.Unanswered,
		syscall.EHOSTUNREACH:     ejection.Unanswered, syscall.ENETUNREACH: ejection.Unanswered,
		syscall.EINVAL: ejection.Unanswered,
		syscall.EMFILE: ejection.Unknown, syscall.EPERM: ejection.Unknown, errors.New("other"): ejection.Unknown,
	} {
		if got := classify(fmt.Errorf("connect: %w", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

// An endpoint that accepts or refuses is not dead, and one that was not asked to the end may not be.
func TestNotDead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := netip.MustParseAddrPort(l.Addr().String())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if Dead(t.Context(), endpoint) || Dead(ended, endpoint) {
		t.Error("one that accepts is dead")
	}
	_ = l.Close()
	if Dead(t.Context(), endpoint) {
		t.Error("one that refuses is dead")
	}
}

// Calico's route for all pods of a node drops what goes to one that is no more. One that is back a moment later is not
// dead.
func TestDeadRoute(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "dead-route")
	pods := net.IPNet{IP: net.IP{10, 9, 0, 0}, Mask: net.CIDRMask(16, 32)}
	testnet.Require(t, ns.Handle().RouteAdd(&netlink.Route{Dst: &pods, Type: unix.RTN_BLACKHOLE}))
	endpoint := netip.MustParseAddrPort("10.9.0.1:80")
	dead := func() (is bool) {
		testnet.Require(t, ns.Do(func() error {
			is = Dead(t.Context(), endpoint)
			return nil
		}))
		return is
	}
	if !dead() {
		t.Error("what is no more is not dead")
	}
	back := make(chan error, 1)
	time.AfterFunc(ejection.Patience/2, func() { back <- ns.AddAddr("lo", netip.PrefixFrom(endpoint.Addr(), 32)) })
	if dead() {
		t.Error("one that was away for a moment is dead")
	}
	testnet.Require(t, <-back)
}

// A process that was stopped meanwhile has heard nothing: that says nothing about the endpoint.
func TestInTime(t *testing.T) {
	for _, c := range []struct {
		answer ejection.Answer
		took   time.Duration
		want   ejection.Answer
	}{
		{ejection.Unanswered, ejection.Patience, ejection.Unanswered}, {ejection.Unanswered, ejection.Patience + late,
			ejection.Unanswered},
		{ejection.Unanswered, 3 * ejection.Patience, ejection.Unknown}, {ejection.Answered, 3 * ejection.Patience,
			ejection.Answered},
	} {
		if got := inTime(c.answer, c.took); got != c.want {
			t.Errorf("%v after %v: %v, want %v", c.answer, c.took, got, c.want)
		}
	}
}

// Thousands of connections without an answer to one endpoint come first in the table. They do not hide those to
// another.
func TestHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		connections := &table{cpu: time.Millisecond, to: append(slices.Repeat([]netip.AddrPort{endpointAt(2)}, 2*mostFlows),
			endpointAt(1))}
		left := false
		e := newEjector(Config{
			Table: connections, Mode: service.EjectOn, Observe: func(Report) {},
			Set: func(e service.Adjustments) {
				left = e.Len() > 0 && e.At("shop/web").Find(&service.Port{Protocol: service.TCP, Port: 80}, endpointAt(1)) != nil
			},
			Connect: func(_ context.Context, to []netip.AddrPort) ejection.Answer {
				if to[0] != endpointAt(1) {
					return ejection.Answered
				}
				time.Sleep(ejection.Patience)
				return ejection.Unanswered
			},
		})
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		e.Notify(snapshot("own", "a", "b", "c"))
		time.Sleep(20 * time.Second)
		cancel()
		<-done
		time.Sleep(ejection.Patience) // for connects under way
		if !left {
			t.Error("the endpoint that does not answer is not left out")
		}
	})
}

// BenchmarkConnect is the CPU time of the whole process for a connect that is accepted, with both ends in it.
func BenchmarkConnect(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	to := []netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())}
	start := cpu()
	for b.Loop() {
		if a := connect(b.Context(), to); a != ejection.Answered {
			b.Fatal(a)
		}
	}
	b.ReportMetric(float64(cpu()-start)/float64(b.N), "ns-cpu/op")
}
