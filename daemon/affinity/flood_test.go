package affinity_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/affinity"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/testnet"
)

// neighbours is a node with two Services with affinity.
type neighbours struct {
	*testnet.Topology
	t       *testing.T
	conn    *kernel.Conn
	state   nft.State
	program *nft.Program
}

func newNeighbours(t *testing.T, pods ...string) *neighbours {
	t.Helper()
	n := &neighbours{Topology: testnet.NewForTest(t, testnet.Config{}), t: t}
	for _, name := range pods {
		pod, err := n.AddPod(name)
		n.must(err)
		for _, a := range pod.Addrs {
			_, err := pod.NS.Serve(testnet.TCP, netip.AddrPortFrom(a, targetPort), name)
			n.must(err)
		}
	}
	var err error
	n.conn, err = kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: n.Node.Fd()}))
	n.must(err)
	t.Cleanup(func() { n.must(n.conn.Close()) })
	return n
}

func (n *neighbours) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// addressOf is the cluster IP and port of the Service with the number i.
func addressOf(family ip.Family, i byte) netip.AddrPort {
	base := netip.MustParseAddr("10.96.0.0")
	if family == ip.V6 {
		base = netip.MustParseAddr("fd00:96::")
	}
	b := base.AsSlice()
	b[len(b)-1] = i
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, port)
}

// sync puts Services in force. Each argument has the names of one Service's pods.
func (n *neighbours) sync(services ...string) {
	n.t.Helper()
	b := snapshots.NewBuilder(service.Node{Name: "node", Addresses: n.NodeAddrs})
	for i, pods := range services {
		var list []service.Endpoint
		for name := range strings.FieldsSeq(pods) {
			for _, a := range n.Pod(name).Addrs {
				list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(a, targetPort), Ready: true, Serving: true})
			}
		}
		p := service.Port{Protocol: service.TCP, Port: port, Endpoints: service.MergeEndpoints(list)}
		b.Set(&service.Service{
			Name: service.NewName("default", string(rune('a'+i))), AffinityTimeout: time.Hour, Ports: []service.Port{p},
			ClusterIPs: []netip.Addr{addressOf(ip.V4, byte(i+1)).Addr(), addressOf(ip.V6, byte(i+1)).Addr()},
		})
	}
	n.program = ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable,
		Settings: service.Settings{ClusterCIDRs: n.ClusterCIDRs}}, b.Snapshot())
	batch, next := n.state.Plan(n.program, time.Now())
	n.must(n.conn.Apply(batch))
	n.state = next
}

// ask connects from a pod to a Service and returns the name of the pod that answered.
func (n *neighbours) ask(from string, to netip.AddrPort) string {
	n.t.Helper()
	a, err := n.Pod(from).NS.Ask(n.t.Context(), testnet.TCP, to, enough)
	n.must(err)
	if a.Outcome != testnet.Answered {
		n.t.Fatalf("%s asks %s: %s", from, to, a.Outcome)
	}
	return a.ID
}

// remembered returns the map and the element with which the Service remembers the
// endpoint for the pod.
func (n *neighbours) remembered(f nft.Family, by service.Name, pod,
	endpoint string) (m ruleset.AffinityMap, e kernel.Entry, found bool) {
	n.t.Helper()
	of := func(name string) netip.Addr {
		if f == nft.IPv6 {
			return n.Pod(name).Addrs.V6()
		}
		return n.Pod(name).Addrs.V4()
	}
	for _, m := range ruleset.AffinityMaps(n.program) {
		if m.Name.Family != f || m.Name.Service != by {
			continue
		}
		entries, err := n.conn.Learned(m.Table, m.Set)
		n.must(err)
		for _, e := range entries {
			if strings.HasPrefix(string(e.Key), string(of(pod).AsSlice())) && strings.HasPrefix(string(e.Data),
				string(of(endpoint).AsSlice())) {
				return m, e, true
			}
		}
	}
	return m, e, false
}

// fill adds clients to a map until the kernel takes no more. Their elements are like
// the one given.
func (n *neighbours) fill(m ruleset.AffinityMap, like kernel.Entry) (filled int) {
	n.t.Helper()
	const chunk, most = 500, 1 << 20
	add := func(from, to int) error {
		var list []nft.OwnedElement
		for i := from; i < to; i++ {
			key := []byte(like.Key)
			key[0], key[1], key[2], key[3] = 11, byte(i>>16), byte(i>>8), byte(i)
			list = append(list, nft.OwnedElement{Element: nft.Element{Set: m.Set.Name, Key: nft.Value(key), Data: like.Data}})
		}
		return n.conn.Apply(nft.Batch{Ops: []nft.Op{nft.AddElements{Table: m.Table, Set: m.Set, Elements: list}}})
	}
	for step := chunk; filled < most; {
		err := add(filled, filled+step)
		var refused *kernel.BatchError
		switch {
		case err == nil:
			filled += step
		case !errors.As(err, &refused) || refused.Errors[0].Errno != unix.ENFILE:
			n.t.Fatal(err)
		case step == 1:
			return filled
		default:
			step = 1
		}
	}
	n.t.Fatalf("no end after %d clients", filled)
	return 0
}

// counting counts the clients that sweeps look at.
type counting struct {
	*kernel.Conn
	clients atomic.Int64
}

func (c *counting) Sweep(ctx context.Context, table nft.TableID, set *nft.Set,
	keep func(key, data nft.Value) bool) (left, swept int, err error) {
	return c.Conn.Sweep(ctx, table, set, func(key, data nft.Value) bool {
		c.clients.Add(1)
		return keep(key, data)
	})
}

// TestFloodOfOneService: the map of one Service is full of clients. The new clients of
// another Service still have affinity. When an endpoint of the other Service goes, a
// sweep looks only at the other Service's clients.
func TestFloodOfOneService(t *testing.T) {
	n := newNeighbours(t, "client", "stranger", "a-1", "b-1", "b-2")
	for _, f := range nft.Families() {
		if testing.Short() && f == nft.IPv6 {
			continue // filling a map takes a second
		}
		n.sync("a-1", "b-1")
		n.ask("client", addressOf(f, 1))
		m, e, found := n.remembered(f, "default/a", "client", "a-1")
		if !found {
			t.Fatalf("%s: the first client is not remembered", f)
		}
		filled := n.fill(m, e)
		if filled < 60_000 {
			t.Errorf("%s: full after %d clients", f, filled)
		}
		n.ask("client", addressOf(f, 2))
		if _, _, found := n.remembered(f, "default/b", "client", "b-1"); !found {
			t.Fatalf("%s: with %d clients of another service, a new client is not remembered", f, filled)
		}
		n.ask("stranger", addressOf(f, 1))
		if _, _, found := n.remembered(f, "default/a", "stranger", "a-1"); found {
			t.Errorf("%s: the flooded service has remembered one more", f)
		}

		k := &counting{Conn: n.conn}
		runs := make(chan affinity.Run, 100)
		s := affinity.NewSweeper(k, busy(), func(r affinity.Run) { runs <- r })
		s.Notify(n.program, false)
		n.sync("a-1", "b-2")
		s.Notify(n.program, false)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		for swept := 0; swept == 0; {
			select {
			case r := <-runs:
				n.must(r.Err)
				swept += r.Swept
			case <-time.After(time.Minute):
				t.Fatal("nothing swept")
			}
		}
		cancel()
		n.must(<-done)
		if looked := k.clients.Load(); looked > 100 {
			t.Errorf("%s: a sweep of one client has looked at %d", f, looked)
		}
		if _, _, found := n.remembered(f, "default/b", "client", "b-1"); found {
			t.Errorf("%s: still remembered with an endpoint that has gone", f)
		}
		if id := n.ask("client", addressOf(f, 2)); id != "b-2" {
			t.Errorf("%s: sent to %s", f, id)
		}
	}
}
