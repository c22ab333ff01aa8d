package live

import (
	"errors"
	"net/netip"

	"nftproxy/look/explain"
	"nftproxy/model/ip"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/node/forwarding"
)

// link is the neighbours of a family by an interface.
type link struct {
	device string
	family ip.Family
}

// hop asks the kernel what it does with a packet, and for the facts by which it does so.
func (n *Node) hop(packet nft.Packet, masqueraded bool) (explain.Hop, bool) {
	src, dst, in := packet.Src.Addr(), packet.Dst.Addr(), packet.Input
	p := forwarding.Packet{Src: packet.Src, Dst: packet.Dst, Protocol: packet.Protocol, In: in}
	if masqueraded {
		p.Mark = ruleset.ReadBackConfig(n.facts.Tables, n.facts.Table).MasqueradeMark
	}
	if in == "" && src.IsLoopback() {
		return explain.Hop{}, false // The kernel takes another source, once the packet has left the loopback interface.
	}
	route, ok, err := forwarding.Lookup(p)
	if err == nil && ok && n.settings == nil {
		n.settings, err = forwarding.Read(proc)
	}
	if err != nil || !ok {
		n.failed = errors.Join(n.failed, err)
		return explain.Hop{}, false
	}
	h := explain.Hop{
		In: in, Refusal: string(route.Refusal), Refused: route.Refusal == forwarding.Dropped, Local: route.Local,
		Device: route.Device, Next: dst, Back: n.route(src).Device, Forwards: true,
	}
	if route.Via.IsValid() {
		h.Next = route.Via
	}
	if in != "" {
		i := n.settings.Interface(in)
		if i == nil {
			return explain.Hop{}, false
		}
		h.Forwards, h.Bridge, h.Seen = *i.Forwards.Of(ip.Of(dst)), i.Kind == "bridge", n.settings.Sees(i, ip.Of(dst))
		if dst.Is4() {
			h.ReversePath = i.ReversePath
		}
	}
	if h.Neighbour = explain.NeighbourAnswers; h.Device != "" {
		out := n.settings.Interface(h.Device)
		h.Dead = out != nil && !out.Carrier
		h.Neighbour = n.neighbour(h.Device, h.Next)
	}
	return h, true
}

// proc is where the kernel shows its settings.
const proc = "/proc"

// neighbour says whether a host answers on the link of an interface.
func (n *Node) neighbour(device string, a netip.Addr) explain.Neighbour {
	at := link{device, ip.Of(a)}
	if n.neighbours[at] == nil {
		list, err := forwarding.ListNeighbours(device, at.family)
		if err != nil {
			n.failed = errors.Join(n.failed, err)
			return explain.NeighbourUnknown
		}
		n.neighbours[at] = list
	}
	switch n.neighbours[at].Of(a) {
	case forwarding.Answers:
		return explain.NeighbourAnswers
	case forwarding.Asked:
		return explain.NeighbourAsked
	case forwarding.Absent:
		return explain.NeighbourAbsent
	}
	return explain.NeighbourUnknown
}

// unasked lists what rules of routing go by that hop does not ask with.
func (n *Node) unasked(f nft.Family) []string {
	list, err := forwarding.Unasked(f)
	n.failed = errors.Join(n.failed, err)
	return list
}
