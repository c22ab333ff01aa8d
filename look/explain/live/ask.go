package live

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/look/explain"
	"nftproxy/model/ip"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// Ask makes the question about a packet to a destination. The zero Origin stands for a likely client. If client
// and destination do not fit, the error matches explain.ErrQuestion.
func (n *Node) Ask(from explain.Origin, d explain.Destination) (explain.Question, error) {
	to := d.To
	q := explain.Question{Packet: nft.Packet{Dst: to, Protocol: d.Protocol}, Guessed: from == explain.Origin{}}
	src, device := from.Addr, from.Interface
	switch {
	case (q.Guessed || from.Node) && n.servesLoopback(to.Addr()):
		q.Guessed = false // nobody else gets there
		src = n.forLoopback(&q)
	case q.Guessed:
		src = n.likelyClient(&q)
	case from.Node:
		src = n.ownAddress(&q)
	}
	if src.Is6() != to.Addr().Is6() {
		return q, fmt.Errorf("%w: --from %s and %s are of different families", explain.ErrQuestion, src, to.Addr())
	}
	// The client's kernel chooses the port. Where rules hash it, any endpoint may be meant (nftproxy.io/balance: flow).
	q.Packet.Src = netip.AddrPortFrom(src, 0)
	if q.Packet.FromNode = device == "" && n.local(src); q.Packet.FromNode {
		q.From = "the node itself"
		if !n.local(to.Addr()) {
			q.NoWay = n.route(to.Addr()).Refusal
		}
		return q, n.failed
	}
	n.enter(&q, src, device)
	return q, n.failed
}

// enter chooses the interface by which the packet comes in.
func (n *Node) enter(q *explain.Question, src netip.Addr, device string) {
	route := n.route(src)
	if q.Packet.Input = device; device == "" {
		q.Packet.Input = route.Device
		switch {
		case route.Device == "":
			q.Assumed = append(q.Assumed, fmt.Sprintf("the node has no route to %s, so the interface by which the packet "+
				"comes in is not known", src))
		default:
			q.Assumed = append(q.Assumed, fmt.Sprintf("the packet comes in by %s, since the route to %s leads there (--from "+
				"%s@INTERFACE names another one)", route.Device, src, src))
		}
	}
	if to := q.Packet.Dst.Addr(); q.Packet.Input != "" && n.local(to) {
		var err error
		q.Packet.ToInput, err = n.has(q.Packet.Input, to)
		n.failed = errors.Join(n.failed, err)
	}
	q.From = "a client outside"
	config := ruleset.ReadBackConfig(n.facts.Tables, n.facts.Table)
	inRange := slices.ContainsFunc(config.ClusterCIDRs, func(p netip.Prefix) bool { return p.Contains(src) })
	onLink := route.Device != "" && !route.Via.IsValid() && !route.Default
	byInterface := config.PodInterface.Name != "" && (q.Packet.Input == config.PodInterface.Name ||
		config.PodInterface.Prefix && strings.HasPrefix(q.Packet.Input, config.PodInterface.Name))
	switch {
	case byInterface, inRange && onLink:
		q.From = "a pod of this node"
	case inRange:
		q.From = "a pod of another node"
	}
}

// ownAddress returns the address that a process of the node would send from.
func (n *Node) ownAddress(q *explain.Question) netip.Addr {
	to := q.Packet.Dst.Addr()
	src := n.route(to).Source
	switch {
	case src.IsValid():
	case n.local(to):
		src = to
	default:
		src = ip.Of(to).Loopback()
	}
	q.Assumed = append(q.Assumed, fmt.Sprintf("the node sends from %s", src))
	return src
}

// servesLoopback says whether nftproxy serves node ports to clients on the loopback address.
func (n *Node) servesLoopback(a netip.Addr) bool {
	contents := n.contentsFor(a)
	return contents != nil && a == ip.Of(a).Loopback() && ruleset.ServesLoopback(contents)
}

// forLoopback returns an address from which nftproxy connects for its clients on loopback.
func (n *Node) forLoopback(q *explain.Question) netip.Addr {
	to := q.Packet.Dst.Addr()
	own := slices.DeleteFunc(slices.SortedFunc(maps.Keys(n.own), netip.Addr.Compare), func(a netip.Addr) bool {
		return ip.Of(a) != ip.Of(to) || a.IsLoopback() || a.IsLinkLocalUnicast()
	})
	if len(own) == 0 {
		return n.ownAddress(q)
	}
	q.Assumed = append(q.Assumed, fmt.Sprintf("nftproxy listens on %s, unless another process has the port, and "+
		"connects from %s for the client", q.Packet.Dst, own[0]))
	return own[0]
}

// likelyClient chooses a client: for a cluster IP a pod of this node, or the node itself if it knows no pod;
// for any other address a client outside.
func (n *Node) likelyClient(q *explain.Question) netip.Addr {
	to := q.Packet.Dst.Addr()
	contents := n.contentsFor(to)
	if contents != nil && (ruleset.ClusterIPOwner(contents, to) != "" || ruleset.InServiceCIDR(contents, to)) {
		if pod, known := n.localPod(contents); known {
			q.Assumed = append(q.Assumed, fmt.Sprintf("the client is a pod of this node, %s, since %s is a Service's address "+
				"in the cluster (--from names another client)", pod, to))
			return pod
		}
		src := n.ownAddress(q)
		q.Assumed = append(q.Assumed, "the client is the node itself, since the tables name no pod of this node (--from "+
			"names another client)")
		return src
	}
	outside := ip.Of(to).Example()
	q.Assumed = append(q.Assumed, fmt.Sprintf("the client is outside of the cluster, with the address %s (--from names "+
		"another client)", outside))
	return outside
}

// localPod returns the first endpoint on this node: that is a pod for certain.
func (n *Node) localPod(contents *nft.Contents) (netip.Addr, bool) {
	for _, a := range ruleset.LocalEndpoints(contents) {
		if !n.local(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}
