package explain_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nftproxy/look/explain"
	"nftproxy/nft"
)

// TestPath: what is said of the way behind the rules, by what the kernel says of the packet and of its answer.
func TestPath(t *testing.T) {
	client, endpoint, gateway := netip.MustParseAddr("10.244.0.9"), netip.MustParseAddr("10.244.0.5"),
		netip.MustParseAddr("192.168.0.1")
	good := explain.Hop{Forwards: true, Device: "veth5", Next: endpoint, Back: "veth9",
		Neighbour: explain.NeighbourAnswers}
	back := explain.Hop{Forwards: true, Device: "veth9", Next: client, Back: "veth5", Neighbour: explain.NeighbourAnswers}
	with := func(h explain.Hop, change func(*explain.Hop)) explain.Hop {
		change(&h)
		return h
	}
	for name, c := range map[string]struct {
		there, back explain.Hop
		stopped     bool
		says        string
	}{
		"both pass": {good, back, false, ""},
		"no forward": {with(good, func(h *explain.Hop) { h.Forwards = false }), back, true,
			"does not forward the packet: forwarding of IPv4 is off for veth9"},
		"local": {explain.Hop{Local: true, Neighbour: explain.NeighbourAnswers}, with(back, func(h *explain.Hop) {
			h.Refusal = "no route"
		}), false, ""},
		"no way": {with(good, func(h *explain.Hop) { h.Refusal = "no route" }), back, true,
			"the node has no route to 10.244.0.5 for the packet"},
		"no way back": {good, with(back, func(h *explain.Hop) { h.Refusal = "no route" }), true,
			"the node has no route to 10.244.0.9 for the answer"},
		"blackhole": {with(good, func(h *explain.Hop) { h.Refusal, h.Refused, h.ReversePath = "a blackhole", true, 1 }),
			back, true, "the node has a blackhole"},
		"strict": {with(good, func(h *explain.Hop) {
			h.Refusal, h.Refused, h.ReversePath, h.Back = "a blackhole", true,
				1, "eth0"
		}), back, true, "the way back to it is by eth0 (rp_filter is 1 for veth9)"},
		"loose": {with(good, func(h *explain.Hop) {
			h.Refusal, h.Refused, h.ReversePath, h.Back = "a blackhole", true,
				2, "eth0"
		}), back, true, "the node has a blackhole"},
		"loose, none": {with(good, func(h *explain.Hop) {
			h.Refusal, h.Refused, h.ReversePath, h.Back = "a blackhole", true,
				2, ""
		}), back, true, "there is no way back to it (rp_filter is 2"},
		// The kernel has several ways back.
		"passed": {with(good, func(h *explain.Hop) { h.ReversePath, h.Back = 1, "eth0" }), back, false, ""},
		"dead": {with(good, func(h *explain.Hop) { h.Dead, h.Neighbour = true, explain.NeighbourUnknown }), back, true,
			"cannot send the packet: its interface veth5 has no carrier"},
		"absent": {with(good, func(h *explain.Hop) { h.Neighbour = explain.NeighbourAbsent }), back, true,
			"no host has the address 10.244.0.5: nobody answers on the link of veth5"},
		"asked": {with(good, func(h *explain.Hop) { h.Neighbour = explain.NeighbourAsked }), back, true,
			"veth5 so far"},
		"no gateway": {with(good, func(h *explain.Hop) { h.Neighbour, h.Next = explain.NeighbourAbsent, gateway }), back,
			true, "no host has 192.168.0.1, the next hop to 10.244.0.5"},
		"gateway": {with(good, func(h *explain.Hop) { h.Device, h.Next = "eth0", gateway }), back, false,
			"not known: whether the endpoint 10.244.0.5:80 gets the packet: its pod is on this node, which sends " +
				"the packet to 192.168.0.1 by eth0"},
		"no client": {good, with(back, func(h *explain.Hop) { h.Neighbour = explain.NeighbourAbsent }), true,
			"no host has the client's address 10.244.0.9"},
		"not known": {with(good, func(h *explain.Hop) { h.Neighbour = explain.NeighbourUnknown }), back, false,
			"not known: whether a host has 10.244.0.5 (by veth5)"},
		"bridge": {with(good, func(h *explain.Hop) { h.Device, h.Back, h.Bridge = "veth9", "veth9", true }), back, true,
			"on the bridge veth9, and rules do not see"},
		"bridge, seen": {with(good, func(h *explain.Hop) {
			h.Device, h.Back, h.Bridge, h.Seen = "veth9", "veth9", true,
				true
		}), back, false, ""},
		"link": {with(good, func(h *explain.Hop) { h.Device, h.Back = "veth9", "veth9" }), back, false,
			"not known: whether the endpoint 10.244.0.5:80 answers by this node"},
	} {
		w := worldOf(t, "node node-1\nservice ns/web created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.2\n  port http tcp "+
			"80\n    endpoint 10.244.0.5:80 node-1 ready serving\n")
		w.facts.Objects, w.facts.Source = &w.snapshot, "the objects"
		w.facts.Way = func(netip.Addr) string { return "by veth9" }
		w.facts.Hop = func(p nft.Packet, _ bool) (explain.Hop, bool) {
			h := c.there
			if p.Src.Addr() == endpoint {
				h = c.back
			}
			h.In = p.Input
			return h, true
		}
		// To the Service, and to the endpoint itself, of which it is not known whether its pod is on this node.
		for _, to := range []string{"10.96.0.2:80", "10.244.0.5:80"} {
			e := w.ask("veth9 10.244.0.9:0 -> " + to + "/tcp")
			text := e.Text(false)
			stopped, says := c.stopped, c.says
			if to == "10.244.0.5:80" && slices.Contains([]string{"gateway", "bridge", "link"}, name) {
				stopped, says = false, ""
			}
			if e.Stopped() != stopped || (len(e.Stops) == 1) != stopped || !strings.Contains(text, says) ||
				strings.Contains(text, "not known") && !strings.Contains(says, "not known") {
				t.Errorf("%s, to %s: stopped %t, want %t and %q:\n%s", name, to, e.Stopped(), stopped, says, text)
			}
		}
	}
}

// TestNoWayBack: where the node has no route to the client, it is not known how the packet comes in, but that no answer
// goes out.
func TestNoWayBack(t *testing.T) {
	w := worldOf(t, "node node-1\nservice ns/web created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.2\n  port http tcp "+
		"80\n    endpoint 10.244.0.5:80 node-1 ready serving\n")
	w.facts.Hop = func(nft.Packet, bool) (explain.Hop, bool) { return explain.Hop{}, false }
	for way, says := range map[string]bool{"": true, "by eth0": false} {
		w.facts.Way = func(a netip.Addr) string {
			if a == netip.MustParseAddr("10.244.0.9") {
				return way
			}
			return "by veth5"
		}
		for _, to := range []string{"10.96.0.2:80", "10.244.0.5:80"} {
			e := w.ask("10.244.0.9:0 -> " + to + "/tcp")
			if text := e.Text(false); strings.Contains(text, "the node has no route to the client 10.244.0.9") != says {
				t.Errorf("way %q, to %s:\n%s", way, to, text)
			}
		}
	}
}
