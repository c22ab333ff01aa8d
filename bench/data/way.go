package data

import (
	"fmt"
	"net/netip"

	"nftproxy/bench/result"
	"nftproxy/test/lib/controlplane"
)

// way is a way in to a service.
type way struct {
	// name is from where to where, and with what.
	name string
	// from is where connections begin.
	from origin
	// affinity says that the service keeps a client with an endpoint.
	affinity bool
}

// origin is where the clients of a way are.
type origin int

const (
	// fromPod is a pod of the node. It asks for a cluster IP.
	fromPod origin = iota
	// fromNode is a process in the node's own network. It asks for a cluster IP.
	fromNode
	// fromOutside is another machine. It asks for a node port.
	fromOutside
)

// plainWay is from a pod to a cluster IP.
func plainWay() way { return way{name: "pod to cluster IP", from: fromPod} }

// ways lists those by which connections are set up.
func ways() []way {
	return []way{
		plainWay(),
		{name: "node to cluster IP", from: fromNode},
		{name: "outside to node port", from: fromOutside},
		{name: "pod to cluster IP, affinity", from: fromPod, affinity: true},
	}
}

// target is an address to connect to: that of a service among some.
type target struct {
	way
	// first asks for the service that was created first instead of the last.
	first bool
}

// service is the address of the target among so many services, on a node with
// the given address.
func (t target) service(services int, node netip.Addr) netip.AddrPort {
	last := services - 1
	if t.first {
		last = 0
	}
	switch {
	case t.from == fromOutside:
		return netip.AddrPortFrom(node, nodePort(last))
	case t.affinity:
		return netip.AddrPortFrom(affinityIP(last+1), controlplane.ServicePort)
	}
	return netip.AddrPortFrom(clusterIP(last), controlplane.ServicePort)
}

// direct is the final destination of the packets, without a proxy.
func (t target) direct() netip.AddrPort {
	return netip.AddrPortFrom(endpointIPs()[0], controlplane.TargetPort)
}

// question is the name of the question about setting up connections.
func (t target) question() string {
	which := "last"
	if t.first {
		which = "first"
	}
	return result.ConnectionSetup + ", " + t.name + ", " + which + " service"
}

// targets lists all that connections are set up to.
func (e Effort) targets() []target {
	var list []target
	for _, w := range ways() {
		if e.First {
			list = append(list, target{w, true})
		}
		list = append(list, target{w, false})
	}
	return list
}

// questions lists what is asked.
func (e Effort) questions() []string {
	var list []string
	for _, t := range e.targets() {
		list = append(list, t.question())
	}
	return list
}

// The rules of nodes without a proxy.

// tracked has connections tracked, and does nothing else.
const tracked = `table ip tracked {
	chain forward {
		type filter hook forward priority filter
		ct state invalid drop
	}
}
`

// staticRule is the least that a rule has to do for a target: a translation, and
// on the way of node ports, the masquerade that brings answers back by any node. The node's own address brings answers
// back without a masquerade to the endpoints here, so what proxies pay for one on that way is in the ratio.
func (t target) staticRule(service netip.AddrPort) string {
	match := fmt.Sprintf("ip daddr %v tcp dport %d", service.Addr(), service.Port())
	hook := "prerouting"
	if t.from == fromNode {
		hook = "output"
	}
	masquerade := ""
	if t.from == fromOutside {
		masquerade = `	chain postrouting {
		type nat hook postrouting priority srcnat
		ct status dnat masquerade
	}
`
	}
	return fmt.Sprintf(`table ip static {
	chain %[1]s {
		type nat hook %[1]s priority -100
		%[2]s dnat to %[3]v
	}
%[4]s}
`, hook, match, t.direct(), masquerade)
}
