package listen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// fakeNet has listeners that accept no connection, one for each address.
type fakeNet struct {
	mu    sync.Mutex
	open  map[netip.AddrPort]*fakeListener
	taken map[netip.AddrPort]error
	tries []string
	began time.Time
}

type fakeListener struct {
	net    *fakeNet
	addr   netip.AddrPort
	broken chan error
	closed chan struct{}
}

func (n *fakeNet) listen(_ context.Context, addr netip.AddrPort) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tries = append(n.tries, fmt.Sprintf("%v %s", time.Since(n.began), addr))
	if err := n.taken[addr]; err != nil {
		return nil, err
	}
	for other := range n.open {
		if other.Port() == addr.Port() && other.Addr().Is6() == addr.Addr().Is6() &&
			(other == addr || other.Addr().IsUnspecified() || addr.Addr().IsUnspecified()) {
			return nil, fmt.Errorf("in use by our own %s", other)
		}
	}
	l := &fakeListener{n, addr, make(chan error, 1), make(chan struct{})}
	n.open[addr] = l
	return l, nil
}

// listening are the open addresses, sorted.
func (n *fakeNet) listening() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []string
	for addr := range n.open {
		list = append(list, addr.String())
	}
	slices.Sort(list)
	return list
}

func (n *fakeNet) take(addr string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken[netip.MustParseAddrPort(addr)] = err
}

func (n *fakeNet) breaks(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open[netip.MustParseAddrPort(addr)].broken <- errors.New("broken")
}

func (l *fakeListener) Accept() (net.Conn, error) {
	select {
	case err := <-l.broken:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *fakeListener) Close() error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	if l.net.open[l.addr] == l {
		delete(l.net.open, l.addr)
		close(l.closed)
	}
	return nil
}

func (l *fakeListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

// bench is HealthPorts on a fake network, in a synctest bubble.
type bench struct {
	*testing.T
	*HealthPorts
	net    *fakeNet
	log    bytes.Buffer
	counts []string
	stop   func()
}

func start(t *testing.T, list ...string) *bench {
	b := &bench{T: t, net: &fakeNet{open: map[netip.AddrPort]*fakeListener{}, taken: map[netip.AddrPort]error{},
		began: time.Now()}}
	b.HealthPorts = NewHealthPorts(Config{
		NodePortAddresses: nodePorts(t, list...),
		Observe: func(open, failed int) {
			b.counts = append(b.counts, fmt.Sprintf("%d open, %d failed", open, failed))
		},
		Log: slog.New(slog.NewTextHandler(&b.log, nil)),
	}, func() bool { return true })
	b.listen = b.net.listen
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.HealthPorts.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	t.Cleanup(b.stop)
	return b
}

// sync tells the HealthPorts of a sync and waits until they have followed it.
func (b *bench) sync(node service.Node, services ...*service.Service) {
	b.Notify(proxy.Sync{Snapshot: snapshot(node, services...)})
	synctest.Wait()
}

func (b *bench) wantListening(when string, want ...string) {
	b.Helper()
	if diff := cmp.Diff(want, b.net.listening()); diff != "" {
		b.Errorf("%s: listening (-want +got):\n%s", when, diff)
	}
}

func (b *bench) wantTries(when string, want ...string) {
	b.Helper()
	if diff := cmp.Diff(want, b.net.tries); diff != "" {
		b.Errorf("%s: tries (-want +got):\n%s", when, diff)
	}
}

// answers are the answers of the open ports.
func (b *bench) answers() map[string]string {
	m := map[string]string{}
	for addr, l := range b.active {
		a := l.(*healthPort).answer.Load()
		m[addr.at.String()] = fmt.Sprintf("%s %d", a.service, a.local)
	}
	return m
}

func TestListenersFollowsSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "192.168.0.0/16", "::/0")
		node := service.Node{HostAddresses: addrs("192.168.0.2")}
		b.sync(node, checked("web", 30100, "10.0.0.1:80"))
		b.wantListening("at first", "192.168.0.2:30100", "[::]:30100")

		b.sync(node, checked("web", 30100, "10.0.0.1:80", "10.0.0.2:80"))
		want := map[string]string{"192.168.0.2:30100": "default/web 2", "[::]:30100": "default/web 0"}
		if diff := cmp.Diff(want, b.answers()); diff != "" {
			t.Errorf("answers after a change of endpoints (-want +got):\n%s", diff)
		}
		// Another service takes the port over, an address comes and one goes.
		node.HostAddresses = addrs("192.168.0.3")
		b.sync(node, checked("other", 30100, "[fd00:1::1]:80"))
		want = map[string]string{"192.168.0.3:30100": "default/other 0", "[::]:30100": "default/other 1"}
		if diff := cmp.Diff(want, b.answers()); diff != "" {
			t.Errorf("answers of the other service (-want +got):\n%s", diff)
		}
		b.wantListening("with another address", "192.168.0.3:30100", "[::]:30100")
		b.sync(node)
		b.wantListening("without services")
		// The IPv6 listener was never closed in between.
		b.wantTries("in all", "0s 192.168.0.2:30100", "0s [::]:30100", "0s 192.168.0.3:30100")
		wantCounts := []string{"2 open, 0 failed", "2 open, 0 failed", "2 open, 0 failed", "0 open, 0 failed"}
		if diff := cmp.Diff(wantCounts, b.counts); diff != "" {
			t.Errorf("observed (-want +got):\n%s", diff)
		}
		if b.log.Len() > 0 {
			t.Errorf("logged:\n%s", b.log.String())
		}
	})
}

// TestListenersAllAddressesToOne: the socket on all addresses is closed before the socket on
// one address is opened.
func TestListenersAllAddressesToOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		for range 10 {
			b.sync(service.Node{}, checked("web", 30100))
			b.wantListening("with the Node unknown", "0.0.0.0:30100", "[::]:30100")
			b.sync(service.Node{Addresses: addrs("192.168.0.2", "2001:db8::2")}, checked("web", 30100))
			b.wantListening("with a known Node", "192.168.0.2:30100", "[2001:db8::2]:30100")
		}
		if b.log.Len() > 0 {
			t.Errorf("logged:\n%s", b.log.String())
		}
	})
}

// TestListenersRetry: a failed address is tried again every five seconds, whatever else
// changes. It logs the failure once, and opens the other addresses.
func TestListenersRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "0.0.0.0/0", "2001:db8::/32")
		b.net.take("0.0.0.0:30100", errors.New("in use"))
		bad, good := checked("bad", 30100), checked("good", 30200)
		b.sync(service.Node{}, bad, good)
		b.wantListening("beside a port that is taken", "0.0.0.0:30200")
		for n := range 12 { // Changes of endpoints do not move the next try.
			time.Sleep(time.Second)
			b.sync(service.Node{}, bad, checked("good", 30200, fmt.Sprintf("10.0.0.%d:80", n+1), "10.0.0.1:80"))
		}
		b.wantTries("after 12 s", "0s 0.0.0.0:30100", "0s 0.0.0.0:30200", "5s 0.0.0.0:30100", "10s 0.0.0.0:30100")
		b.net.take("0.0.0.0:30100", errors.New("forbidden"))
		time.Sleep(4 * time.Second)
		b.net.take("0.0.0.0:30100", nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		b.wantListening("when it is free", "0.0.0.0:30100", "0.0.0.0:30200")
		for text, times := range map[string]int{
			"level=WARN": 2, `err="in use"`: 1, "err=forbidden": 1, "level=INFO": 1, "service=default/bad": 3,
			"service=default/good": 0,
		} {
			if n := strings.Count(b.log.String(), text); n != times {
				t.Errorf("%s logged %d times, want %d:\n%s", text, n, times, b.log.String())
			}
		}
		tries := len(b.net.tries)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(b.net.tries) != tries {
			t.Errorf("tried again although all is open: %v", b.net.tries[tries:])
		}
		if last := b.counts[len(b.counts)-1]; last != "2 open, 0 failed" {
			t.Errorf("observed %s", last)
		}
	})
}

// TestListenersRetryWhenPortGoes: after a listener was closed, failed addresses are tried again at
// once: the listener may have been in the way.
func TestListenersRetryWhenPortGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "0.0.0.0/0", "2001:db8::/32")
		b.net.take("0.0.0.0:30100", errors.New("in use"))
		b.sync(service.Node{}, checked("bad", 30100), checked("good", 30200))
		b.net.take("0.0.0.0:30100", nil)
		b.sync(service.Node{}, checked("bad", 30100))
		b.wantListening("at once", "0.0.0.0:30100")
		// A port that is not wanted any more is not tried again.
		b.net.take("0.0.0.0:30200", errors.New("in use"))
		b.sync(service.Node{}, checked("good", 30200))
		b.sync(service.Node{})
		tries := len(b.net.tries)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(b.net.tries) != tries || len(b.failed) > 0 {
			t.Errorf("tried %v, failed %v", b.net.tries[tries:], b.failed)
		}
	})
}

// TestListenersEager: eager listeners try a failed address again after each change, and a retry still comes five
// seconds after the failure.
func TestListenersEager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "0.0.0.0/0", "2001:db8::/32")
		b.kind.eager = true
		b.net.take("0.0.0.0:30100", errors.New("in use"))
		for n := range 3 {
			b.sync(service.Node{}, checked("bad", 30100), checked("good", 30200, fmt.Sprintf("10.0.0.%d:80", n+1),
				"10.0.0.9:80"))
			b.sync(service.Node{}, checked("bad", 30100), checked("good", 30200))
			time.Sleep(2 * time.Second)
		}
		synctest.Wait()
		var times []string
		for _, try := range b.net.tries {
			if at, found := strings.CutSuffix(try, " 0.0.0.0:30100"); found {
				times = append(times, at)
			}
		}
		if got, want := strings.Join(times, " "), "0s 0s 2s 2s 4s 4s 5s"; got != want {
			t.Errorf("tried at %s, want %s", got, want)
		}
	})
}

func TestListenersBrokenListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "0.0.0.0/0", "2001:db8::/32")
		b.sync(service.Node{}, checked("web", 30100), checked("other", 30200))
		b.net.breaks("0.0.0.0:30100")
		synctest.Wait()
		b.wantListening("after the break", "0.0.0.0:30200")
		time.Sleep(retryPeriod)
		synctest.Wait()
		b.wantListening("after a while", "0.0.0.0:30100", "0.0.0.0:30200")
		b.stop()
		b.wantListening("after the end")
	})
}

// TestListenersFamilyNotInForce: a family whose program is not in force keeps its answers. The
// other family follows.
func TestListenersFamilyNotInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "0.0.0.0/0", "::/0")
		one, two := checked("web", 30100, "10.0.0.1:80", "[fd00:1::1]:80"), checked("web", 30100, "10.0.0.1:80",
			"10.0.0.2:80")
		syncs := []struct {
			service *service.Service
			err     error
			want    map[string]string
		}{
			{one, errors.New("no"), map[string]string{}},
			{one, proxy.FamilyErrors{nft.IPv6: errors.New("no")}, map[string]string{"0.0.0.0:30100": "default/web 1"}},
			{one, nil, map[string]string{"0.0.0.0:30100": "default/web 1", "[::]:30100": "default/web 1"}},
			{two, proxy.FamilyErrors{nft.IPv4: errors.New("no")}, map[string]string{"0.0.0.0:30100": "default/web 1",
				"[::]:30100": "default/web 0"}},
			{one, errors.New("no"), map[string]string{"0.0.0.0:30100": "default/web 1", "[::]:30100": "default/web 0"}},
			{two, nil, map[string]string{"0.0.0.0:30100": "default/web 2", "[::]:30100": "default/web 0"}},
		}
		for i, step := range syncs {
			b.Notify(proxy.Sync{Snapshot: snapshot(service.Node{}, step.service), Err: step.err})
			synctest.Wait()
			if diff := cmp.Diff(step.want, b.answers()); diff != "" {
				t.Errorf("after sync %d (-want +got):\n%s", i, diff)
			}
		}
	})
}

// TestListenersManySyncsAtOnce: the latest sync of each family counts, also if Run has not seen
// the ones before.
func TestListenersManySyncsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "0.0.0.0/0", "::/0")
		for n := range 1000 {
			latest := proxy.Sync{Snapshot: snapshot(service.Node{}, checked("web", uint16(30000+n)))}
			if n == 999 {
				latest.Err = proxy.FamilyErrors{nft.IPv6: errors.New("no")}
			}
			b.Notify(latest)
		}
		synctest.Wait()
		want := map[string]string{"0.0.0.0:30999": "default/web 0", "[::]:30998": "default/web 0"}
		if got := b.answers(); !maps.Equal(want, got) {
			t.Errorf("answers %v, want %v", got, want)
		}
	})
}
