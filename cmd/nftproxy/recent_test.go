package main

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// TestRecentConnections: the rules note which claims had a new connection, by address and by
// node port, with session affinity or without, and no other claims.
func TestRecentConnections(t *testing.T) {
	f := newFlows(t)
	f.rules(f.services(f.one, f.two) + `service shop/sticky created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.13
  affinity 1m
  port - udp 53
    endpoint ` + at(f.two.Addrs.V4()).String() + ` node ready serving
`)
	conn, err := kernel.Open(kernel.Config{NetNS: f.Node.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	noted := func() []string {
		var list []string
		for _, c := range []struct {
			addr     string
			protocol service.Protocol
			port     uint16
		}{
			{"10.96.0.10", service.UDP, 53}, {"fd00:96::a", service.UDP, 53}, {"0.0.0.0", service.UDP, 30053}, {"::", service.UDP, 30053},
			{"10.96.0.10", service.TCP, 80}, {"10.96.0.11", service.UDP, 53}, {"10.96.0.12", service.UDP, 53}, {"10.96.0.13", service.UDP, 53},
			{"10.96.0.99", service.UDP, 53}, {f.two.Addrs.V4().String(), service.UDP, 8080},
		} {
			claim := service.Claim{Addr: netip.MustParseAddr(c.addr), Protocol: c.protocol, Port: c.port}
			_, ok, err := conn.LearnedBy(ruleset.Recent(ruleset.DefaultTable, claim))
			if err != nil {
				t.Error(err)
			}
			if ok {
				list = append(list, claim.String())
			}
		}
		return list
	}
	client4, client6 := f.client.Addrs.V4().String(), "["+f.client.Addrs.V6().String()+"]"
	var want []string
	for _, step := range []struct {
		connect func()
		notes   []string
	}{
		{func() {}, nil},
		{func() { f.ask(f.client.NS, client4+":4010", "10.96.0.10:53") }, []string{"10.96.0.10:53/udp"}},
		{func() { f.ask(f.client.NS, client6+":4010", "[fd00:96::a]:53") }, []string{"[fd00:96::a]:53/udp"}},
		{func() {
			f.ask(f.Outside, f.OutsideAddrs.V4().String()+":4030", f.NodeAddrs.V4().String()+":30053")
		}, []string{"node port 30053/udp"}},
		{func() { f.dial("10.96.0.10:80") }, []string{"10.96.0.10:80/tcp"}},
		{func() { f.ask(f.client.NS, client4+":4013", "10.96.0.13:53") }, []string{"10.96.0.13:53/udp"}},
		{func() { f.ask(f.client.NS, client4+":4099", at(f.two.Addrs.V4()).String()) }, nil}, // not to a Service
		{func() { f.unanswered(client4+":4014", "10.96.0.99:53") }, nil},
	} {
		step.connect()
		want = append(want, step.notes...)
		got := noted()
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}
