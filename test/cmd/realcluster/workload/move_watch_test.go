package workload

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestMoves: an address has moved where clients outside have a hardware address of another node for it, and not where
// an entry is confirmed, has no hardware address or is about something else.
func TestMoves(t *testing.T) {
	hardware := func(node byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, node} }
	a, other := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")
	m := &moves{nodes: map[string]string{hardware(1).String(): "node-1", hardware(2).String(): "node-2"},
		at: map[netip.Addr]string{a: ""}}
	for _, n := range []netlink.Neigh{
		{IP: a.AsSlice(), HardwareAddr: hardware(1)},
		{IP: a.AsSlice(), HardwareAddr: hardware(1)},
		{IP: a.AsSlice()},
		{IP: other.AsSlice(), HardwareAddr: hardware(2)},
		{IP: a.AsSlice(), HardwareAddr: hardware(9)},
	} {
		m.note(n)
	}
	if len(m.all) > 0 || m.nodeOf(a) != "node-1" {
		t.Fatalf("moves before any: %v, the address is at %q", m.all, m.nodeOf(a))
	}
	m.note(netlink.Neigh{IP: a.AsSlice(), HardwareAddr: hardware(2)})
	if len(m.all) != 1 || m.all[0].from != "node-1" || m.all[0].to != "node-2" || m.nodeOf(a) != "node-2" {
		t.Errorf("moves: %v, the address is at %q", m.all, m.nodeOf(a))
	}
}

// TestReportAfter: requests that began before the last move, or on connections that were kept, do not count.
func TestReportAfter(t *testing.T) {
	began := time.Now()
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	a := netip.MustParseAddr("203.0.113.1")
	l := &lossLoad{to: []entrance{{netip.AddrPortFrom(a, 80), "IPv4"}}}
	lost := errors.New("lost")
	l.all = []lossRequest{
		{l.clients("new", 0), at(1), 0, lost}, {l.clients("new", 0), at(3), 0, lost}, {l.clients("kept", 0), at(5), 0, lost},
		{l.clients("new", 0), at(5), 2 * slowRequest, nil}, {l.clients("new", 0), at(6), 0, nil},
	}
	var out strings.Builder
	if err := l.reportAfter(&out, []move{{a, at(2), "node-1", "node-2"}, {a, at(4), "node-2", "node-1"}},
		began); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "1 of 2 that began after the last move of 203.0.113.1, at 4s") {
		t.Error(out.String())
	}
	if err := l.reportAfter(&out, nil, began); err == nil {
		t.Error("no error although nothing moved")
	}
}
