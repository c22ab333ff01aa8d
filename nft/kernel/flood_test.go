package kernel_test

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/test/lib/testnet"
)

// addAddresses gives a pod many more addresses, and returns them by number.
func (n *affinityNet) addAddresses(t *testing.T, f nft.Family, pod string) func(i int) netip.Addr {
	t.Helper()
	prefix := netip.MustParsePrefix("10.50.0.0/16")
	if f == nft.IPv6 {
		prefix = netip.MustParsePrefix("fd00:50::/112")
	}
	p := n.Pod(pod)
	must(t, n.Node.AddRoute(prefix, of(f, p.Addrs)))
	must(t, p.NS.Sysctl("net.ipv6.ip_nonlocal_bind", "1")) // IPv4 needs only the route
	lo, err := p.NS.Handle().LinkByName("lo")
	must(t, err)
	must(t, p.NS.Handle().RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())},
	}))
	base := prefix.Addr().AsSlice()
	return func(i int) netip.Addr {
		b := append([]byte(nil), base...)
		b[len(b)-2], b[len(b)-1] = byte(i>>8), byte(i)
		a, _ := netip.AddrFromSlice(b)
		return a
	}
}

// sendDatagrams sends single datagrams to a service until stop, each from another client
// and a new port. It counts them.
func (n *affinityNet) sendDatagrams(pod string, clients func(int) netip.Addr, to netip.AddrPort, sent *atomic.Int64,
	stop <-chan struct{}) error {
	const crowd = 5000
	return n.Pod(pod).NS.Do(func() error {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return nil
			default:
			}
			from := netip.AddrPortFrom(clients(i%crowd), 0)
			conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
			if err != nil {
				return err
			}
			if _, err := conn.Write([]byte("x")); err != nil && !errors.Is(err, unix.EPERM) { // a full conntrack table
				return errors.Join(err, conn.Close())
			}
			if err := conn.Close(); err != nil {
				return err
			}
			sent.Add(1)
		}
	})
}

// Many clients come in while one endpoint replaces another. Once the map is swept, it
// remembers none of them with the old endpoint, and it learns none any more.
func TestSwapUnderAFlood(t *testing.T) {
	swaps := 20
	if testing.Short() {
		swaps = 5
	}
	n := newAffinityNet(t, 65536)
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) {
			clients := n.addAddresses(t, f, "client-1")
			stop := make(chan struct{})
			var sent atomic.Int64
			var flooding sync.WaitGroup
			end := sync.OnceFunc(func() { close(stop); flooding.Wait() })
			defer end()
			flooding.Go(func() {
				if err := n.sendDatagrams("client-1", clients, netip.AddrPortFrom(addr(f, anyServer), servicePort), &sent,
					stop); err != nil {
					t.Error(err)
				}
			})
			swept := 0
			_, state := nft.State{}.Plan(n.p, timeZero)
			for i := range swaps {
				now, before := "web-1", "web-2"
				if i%2 == 1 {
					now, before = before, now
				}
				p := n.withEndpoints(f, anyServer, testnet.UDP, now)
				b, next := state.Plan(p, timeZero)
				must(t, n.c.Apply(b))
				state = next
				stale := n.endpointValue(f, before)
				keep := func(_, data nft.Value) bool { return data != stale }
				if i == 0 {
					keep = func(_, data nft.Value) bool { return data == n.endpointValue(f, now) }
				}
				_, count, err := n.c.Sweep(t.Context(), table(f), n.affinityMap(f), keep)
				must(t, err)
				swept += count
				// Then enough clients come to fill the map again.
				for goal := sent.Load() + 500; sent.Load() < goal && !t.Failed(); {
					left := learnt(t, n.c, f, n.affinityMap(f))
					for key, data := range left {
						if data != n.endpointValue(f, now) {
							t.Fatalf("swap %d: remembered is %s : %s", i, clientKey.Format(f, key), target.Format(f, data))
						}
					}
				}
			}
			end()
			if swept < swaps*10 {
				t.Errorf("%d entries swept in %d swaps: the flood was none", swept, swaps)
			}
			t.Logf("%d clients' connections, %d entries swept", sent.Load(), swept)
			b, _ := state.Plan(n.p, timeZero)
			must(t, n.c.Apply(b))
		})
	}
}
