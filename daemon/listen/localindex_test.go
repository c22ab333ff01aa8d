package listen

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/daemon/proxy"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// localLines says where to listen and connect from, as "ADDRESS:PORT/PROTOCOL SERVICE from ADDRESS".
func localLines(families ...*localIndex) []string {
	var list []string
	for _, x := range families {
		for a, name := range x.wanted {
			list = append(list, fmt.Sprintf("%s/%s %s from %s", a.at, strings.ToLower(a.protocol.String()), name, x.from))
		}
	}
	slices.Sort(list)
	return list
}

func TestLocalWanted(t *testing.T) {
	own := addrs("127.0.0.1", "172.16.0.1", "192.168.0.2", "::1", "2001:db8::2", "fe80::1")
	node := service.Node{Name: "node", Addresses: addrs("192.168.0.2", "2001:db8::2"), HostAddresses: own}
	web := nodePort("web", 30080, addrs("10.0.0.1")...)
	both := []string{"127.0.0.1:30080/tcp default/web from 192.168.0.2",
		"127.0.0.1:30080/udp default/web from 192.168.0.2"}
	state := func(ready, serving, terminating bool) *service.Service {
		s := nodePort("web", 30080)
		s.Ports[0].Endpoints = service.MergeEndpoints([]service.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"),
			Node: "elsewhere", Ready: ready, Serving: serving, Terminating: terminating}})
		return s
	}
	local := state(true, true, false)
	local.ExternalPolicy = service.Local
	sctp := nodePort("web", 30080, addrs("10.0.0.1")...)
	sctp.Ports[0].Protocol = service.SCTP
	younger := nodePort("a-younger", 30080, addrs("10.0.0.1")...)
	younger.Created = time.Unix(40000, 0)
	ranges := func(value string) *service.Service {
		s := nodePort("web", 30080, addrs("10.0.0.1", "fd00::1")...)
		if err := s.Options.Set("source-ranges", value); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, c := range []struct {
		name     string
		list     string
		node     service.Node
		services []*service.Service
		refused  map[string]error
		want     []string
	}{
		{name: "localhost", list: "localhost", node: node, services: []*service.Service{web}, want: both},
		{name: "both families", list: "primary localhost", node: node,
			services: []*service.Service{nodePort("web", 30080, addrs("10.0.0.1", "fd00::1")...)},
			want: append(slices.Clone(both), "[::1]:30080/tcp default/web from 2001:db8::2",
				"[::1]:30080/udp default/web from 2001:db8::2")},
		{name: "primary", list: "primary", node: node, services: []*service.Service{web}},
		{name: "all", list: "all", node: node, services: []*service.Service{web}},
		{name: "one protocol", list: "localhost", node: node, services: []*service.Service{sctp}, want: both[1:]},
		{name: "none ready", list: "localhost", node: node, services: []*service.Service{state(false, false, false)}},
		{name: "one terminates", list: "localhost", node: node, services: []*service.Service{state(false, true, true)},
			want: both[:1]},
		{name: "policy Local, endpoint elsewhere", list: "localhost", node: node, services: []*service.Service{local},
			want: both[:1]},
		{name: "two with one number", list: "localhost", node: node, services: []*service.Service{younger, web}, want: both},
		{name: "source ranges with the node", list: "localhost", node: node,
			services: []*service.Service{ranges("203.0.113.0/24,192.168.0.2/32")}, want: both},
		{name: "source ranges with the node, IPv6", list: "localhost", node: node,
			services: []*service.Service{ranges("192.168.0.0/31,::/0")},
			want:     []string{"[::1]:30080/tcp default/web from 2001:db8::2", "[::1]:30080/udp default/web from 2001:db8::2"}},
		{name: "source ranges with another address of the node", list: "localhost", node: node,
			services: []*service.Service{ranges("127.0.0.0/8,172.16.0.1/32,::1/128")}},
		{name: "source ranges that admit nobody", list: "localhost", node: node,
			services: []*service.Service{ranges("none")}},
		{name: "refused by the kernel", list: "localhost", node: node, services: []*service.Service{web},
			refused: map[string]error{"default/web": fmt.Errorf("no")}},
		{name: "no interface has the Node's address", list: "127.0.0.1/32",
			node: service.Node{Addresses: addrs("203.0.113.1"), HostAddresses: own}, services: []*service.Service{web},
			want: []string{"127.0.0.1:30080/tcp default/web from 172.16.0.1",
				"127.0.0.1:30080/udp default/web from 172.16.0.1"}},
		{name: "no address", list: "localhost", node: service.Node{HostAddresses: addrs("127.0.0.1", "::1", "fe80::1")},
			services: []*service.Service{web}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := snapshots.NewBuilder(c.node)
			for _, s := range c.services {
				b.Set(s)
			}
			v4, v6 := newLocalIndex(nodePorts(t, strings.Fields(c.list)...), ip.V4),
				newLocalIndex(nodePorts(t, strings.Fields(c.list)...), ip.V6)
			for _, x := range []*localIndex{v4, v6} {
				x.update(b.Snapshot(), c.refused)
			}
			if diff := cmp.Diff(c.want, localLines(v4, v6)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestManyNodePorts: the oldest Services have their listeners, whatever younger ones ask for.
func TestManyNodePorts(t *testing.T) {
	b := snapshots.NewBuilder(service.Node{HostAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	const services = maxListeners/2 + 100
	for i := range uint16(services) {
		b.Set(nodePort(fmt.Sprintf("web-%d", services-i), 30000+i, netip.MustParseAddr("10.0.0.1")))
	}
	x := newLocalIndex(nodePorts(t, "localhost"), ip.V4)
	x.update(b.Snapshot(), nil)
	if len(x.wanted) != maxListeners || x.leftOut != 200 {
		t.Fatalf("%d listeners, %d left out", len(x.wanted), x.leftOut)
	}
	for a, name := range x.wanted {
		if a.at.Port() >= 30000+maxListeners/2 {
			t.Fatalf("%s has one before older Services", name)
		}
	}
	log := &text{}
	ports := NewLocalPorts(Config{NodePortAddresses: nodePorts(t, "localhost"),
		Log: slog.New(slog.NewTextHandler(log, nil))})
	ports.Notify(proxy.Sync{Snapshot: b.Snapshot()})
	for range 2 {
		ports.config.Observe(0, 0)
	}
	if got := log.b.String(); strings.Count(got, "left_out=200 ") != 1 || strings.Count(got, "\n") != 1 {
		t.Errorf("logged:\n%s", got)
	}
}

// TestLocalUpdateEqualsFresh: see updateEqualsFresh.
func TestLocalUpdateEqualsFresh(t *testing.T) {
	for seed := range uint64(20) {
		fresh := func() *localIndex { return newLocalIndex(service.NodePortAddresses{}, ip.Families()[seed%2]) }
		updateEqualsFresh(t, seed, gen.Options{}, fresh, localLines, func(*rand.Rand, *gen.Change) {},
			func(rng *rand.Rand, node *service.Node) {
				node.HostAddresses = node.HostAddresses[rng.IntN(3):]
				node.Settings = &service.Settings{NodePortAddresses: nodePorts(t, []string{"localhost", "primary"}[rng.IntN(5)/4])}
			})
	}
}
