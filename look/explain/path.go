package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/nft"
)

// Hop is what the kernel does with one packet at this node, apart from rules.
type Hop struct {
	// In is the interface by which it comes in; empty for a packet of the node itself.
	In string
	// Refusal says why the kernel does not pass it on, such as "no route"; empty if it does. A packet whose source cannot
	// come in there looks like one to a route of type blackhole: Refused says that it may be the one or the other.
	Refusal string
	Refused bool
	// Local says that a process of the node gets it.
	Local bool
	// Device is the interface by which it leaves, and Next the host that it is sent to on the link.
	Device string
	Next   netip.Addr
	// Forwards says whether the node forwards packets that come in by In.
	Forwards bool
	// ReversePath is the filter of In for IPv4: 0, 1 (strict) or 2 (loose). Back is the interface by which the node would
	// send to the source, empty if there is no way.
	ReversePath int
	Back        string
	// Dead says that nothing is at the other end of Device: it has no carrier.
	Dead bool
	// Neighbour says whether Next answers.
	Neighbour Neighbour
	// Bridge says that In is a bridge, and Seen that rules see what it forwards.
	Bridge, Seen bool
}

// Neighbour says whether a host answers on the link.
type Neighbour string

// What is known of a neighbour.
const (
	NeighbourUnknown Neighbour = "unknown" // no packet went there lately
	NeighbourAnswers Neighbour = "answers"
	NeighbourAsked   Neighbour = "asked" // it has not answered so far
	NeighbourAbsent  Neighbour = "absent"
)

// Stop is an endpoint with which the packet starts no connection, since this node does not pass on the packet or the
// answer.
type Stop struct {
	Endpoint string `json:"endpoint"`
	Why      string `json:"why"`
}

// follow asks the kernel what becomes of the packet behind our rules, for the first endpoints or for the destination
// of a packet that is no Service's, and of the answer. It names what stops them, and what is not known.
func (x *explainer) follow(e *Explanation) {
	e.Stops = []Stop{}
	p := x.question.Packet
	targets := e.Endpoints[:min(len(e.Endpoints), MostWays)]
	if e.Outcome == Untouched {
		targets = []Target{{Address: p.Dst.String(), addr: p.Dst}}
	}
	if x.facts.Hop == nil || len(targets) == 0 {
		return
	}
	if p.Input == "" && !p.FromNode {
		if x.facts.Way != nil && x.wayTo(p.Src.Addr()) == noWay {
			x.cause("the node has no route to the client %s, so no answer gets there, unless a rule of routing by the "+
				"interface knows one (ip rule)", p.Src.Addr())
			x.remedy("give the node a route to %s; the CNI plugin makes the routes to pods: look at its pods and log on this "+
				"node", p.Src.Addr())
		}
		x.note("not known: what the node's routes do with the packet, since the interface by which it comes in is not known")
		return
	}
	unknown := []string{}
	for i := range targets {
		t := &targets[i]
		why, remedy, next := x.passes(t, e.Outcome == Untouched)
		if why != "" {
			e.Stops = append(e.Stops, Stop{t.Address, clean(why)})
			if !slices.Contains(x.causes, clean(why)) {
				x.cause("%s", why)
				x.remedy("%s", remedy)
			}
		} else if next != "" && !slices.Contains(unknown, next) {
			unknown = append(unknown, next)
		}
	}
	if len(unknown) > 0 {
		x.note("not known: whether a host has %s, since the node has sent nothing there lately", listText(unknown))
	}
	if x.facts.Unasked == nil {
		return
	}
	for _, what := range x.facts.Unasked(x.family()) {
		x.note("not known: %s, by which rules of routing go (ip rule)", what)
	}
}

// passes follows the packet to one endpoint, and its answer back. It returns what stops one of the two and what helps,
// or else the host on whose link nothing is known of it. untouched says that it is the packet's own destination.
func (x *explainer) passes(t *Target, untouched bool) (why, remedy, unknown string) {
	client, endpoint := x.question.Packet.Src.Addr(), t.addr.Addr()
	packet := x.question.Packet
	packet.Dst = t.addr
	there, ok := x.facts.Hop(packet, t.Masqueraded)
	if !ok || untouched && x.staysOnLink(t, &there) {
		return "", "", "" // On one link this node is not on the way of what it does not translate.
	}
	if why, remedy := x.stopped(&there, client, endpoint, "the packet"); why != "" {
		return why, remedy, ""
	}
	if there.Local {
		return "", "", ""
	}
	if t.here && there.Next != endpoint {
		x.note("not known: whether the endpoint %s gets the packet: its pod is on this node, which sends the packet to %s "+
			"by %s; where pods have routes of their own, the pod's route or link is missing (ip route get %s)", t.Address,
			there.Next, there.Device, endpoint)
	}
	if there.Neighbour == NeighbourUnknown {
		unknown = fmt.Sprintf("%s (by %s)", there.Next, there.Device)
	}
	if x.staysOnLink(t, &there) {
		if there.Bridge && !there.Seen {
			setting := map[bool]string{false: "bridge-nf-call-iptables", true: "bridge-nf-call-ip6tables"}[endpoint.Is6()]
			return fmt.Sprintf("the client and the endpoint are on the bridge %s, and rules do not see what it forwards: the "+
					"endpoint's answer is not translated back, and the client does not take it", there.In),
				fmt.Sprintf("modprobe br_netfilter && sysctl -w net.bridge.%s=1 (nftproxy check)", setting), ""
		}
		if !there.Bridge {
			x.note("not known: whether the endpoint %s answers by this node; the client is on the same link, %s, and does not "+
				"take an answer that comes directly", t.Address, there.Device)
		}
		return "", "", unknown
	}
	answer := nft.Packet{Src: t.addr, Dst: x.question.Packet.Src, Protocol: packet.Protocol, Input: there.Device}
	back, ok := x.facts.Hop(answer, false)
	if !ok {
		return "", "", unknown
	}
	why, remedy = x.stopped(&back, endpoint, client, "the answer")
	return why, remedy, unknown
}

// staysOnLink says whether the endpoint's answer may reach the client without this node: both are on one link, and the
// endpoint sees the client's address.
func (x *explainer) staysOnLink(t *Target, there *Hop) bool {
	p := x.question.Packet
	return !p.FromNode && !t.Masqueraded && there.Device == there.In && there.Next == t.addr.Addr() &&
		there.Back == there.In &&
		p.Src.Addr() != t.addr.Addr() && x.facts.Way != nil && !strings.Contains(x.facts.Way(p.Src.Addr()), ", via ")
}

// stopped says why the node does not pass on a packet, and what helps; nothing if it does.
func (x *explainer) stopped(h *Hop, src, dst netip.Addr, what string) (why, remedy string) {
	family := x.family().Name()
	comes := "that the node itself sends"
	show := fmt.Sprintf("ip route get %s from %s", dst, src)
	if h.In != "" {
		comes = "that comes in by " + h.In
		show += " iif " + h.In
	}
	const strict = 1
	switch {
	case h.In != "" && !h.Local && !h.Forwards:
		setting := "net.ipv4.ip_forward"
		if dst.Is6() {
			setting = "net.ipv6.conf.all.forwarding"
		}
		return fmt.Sprintf("the node does not forward %s: forwarding of %s is off for %s", what, family, h.In),
			fmt.Sprintf("sysctl -w %s=1 (nftproxy check)", setting)
	case h.Refused && h.In != "" && (h.ReversePath == strict && h.Back != h.In || h.ReversePath != 0 && h.Back == ""):
		way := "there is no way back to it"
		if h.Back != "" {
			way = "the way back to it is by " + h.Back
		}
		return fmt.Sprintf("the kernel drops %s: it comes in by %s with the source %s, and %s (rp_filter is %d for %s)", what,
				h.In, src, way, h.ReversePath, h.In),
			fmt.Sprintf("give the node a route to %s by %s, or turn the filter off: sysctl -w net.ipv4.conf.all.rp_filter=0 "+
				"net.ipv4.conf.%s.rp_filter=0; 2 takes a source to which there is any way", src, h.In, h.In)
	case h.Refusal != "":
		return fmt.Sprintf("the node has %s to %s for %s from %s %s", h.Refusal, dst, what, src, comes),
			show + " and ip rule show what decides: a rule or table by the source, the interface, the mark or port counts, " +
				"too"
	case h.Dead:
		return fmt.Sprintf("the node cannot send %s: its interface %s has no carrier, as one whose other end is down", what,
				h.Device),
			fmt.Sprintf("ip link show dev %s shows it; the pod may have ended, or its network or a cable may be down", h.Device)
	case h.Neighbour == NeighbourAbsent, h.Neighbour == NeighbourAsked:
		host := "no host has the address " + dst.String()
		switch {
		case what != "the packet":
			host = "no host has the client's address " + dst.String()
		case h.Next != dst:
			host = fmt.Sprintf("no host has %s, the next hop to %s", h.Next, dst)
		}
		asked := ""
		if h.Neighbour == NeighbourAsked {
			asked = " so far"
		}
		return fmt.Sprintf("%s: nobody answers on the link of %s%s", host, h.Device, asked),
			fmt.Sprintf("ip neigh show %s dev %s shows it; the pod may have ended, or its network or node may be down", h.Next,
				h.Device)
	}
	return "", ""
}

// stopText says of how many endpoints that were asked about the packet, or its answer, is stopped; empty for none.
func (e *Explanation) stopText() string {
	switch {
	case e.Stopped():
		return "; but this node stops the packet or its answer"
	case len(e.Stops) > 0:
		return fmt.Sprintf("; but for %d of them this node stops the packet or its answer", len(e.Stops))
	}
	return ""
}

// Stopped says whether this node stops the packet or its answer, whichever endpoint it goes to.
func (e *Explanation) Stopped() bool {
	asked := min(len(e.Endpoints), MostWays)
	if e.Outcome == Untouched {
		asked = 1 // its own destination
	}
	return len(e.Stops) > 0 && len(e.Stops) == asked
}
