package data

import (
	"fmt"
	"net/netip"

	"nftproxy/bench/objects"
	"nftproxy/bench/result"
)

// way is a way in to a service.
type way struct {
	// name is from where to where, and with what.
	name string
	// outside says that the client is outside of the node and asks for a node
	// port; it is a pod that asks for a cluster IP otherwise.
	outside bool
	// affinity says that the service keeps a client with an endpoint.
	affinity bool
	// refused says that the service has no endpoints.
	refused bool
}

// plainWay is from a pod to a cluster IP.
func plainWay() way { return way{name: "pod to cluster IP"} }

func refusedWay() way { return way{name: "pod to cluster IP", refused: true} }

// ways lists those by which connections are set up.
func ways() []way {
	return []way{plainWay(), {name: "outside to node port", outside: true}, {name: "pod to cluster IP, affinity", affinity: true}}
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
	case t.refused:
		return netip.AddrPortFrom(refusingIP(), objects.ServicePort)
	case t.outside:
		return netip.AddrPortFrom(node, nodePort(last))
	case t.affinity:
		return netip.AddrPortFrom(affinityIP(last+1), objects.ServicePort)
	}
	return netip.AddrPortFrom(clusterIP(last), objects.ServicePort)
}

// direct is the final destination of the packets, without a proxy.
func (t target) direct() netip.AddrPort {
	port := uint16(objects.TargetPort)
	if t.refused {
		port = closedPort
	}
	return netip.AddrPortFrom(endpointIPs()[0], port)
}

// setup is the name of the question about setting up connections, given its
// first words.
func (t target) question(about string, both bool) string {
	text := about + ", " + t.name
	switch {
	case !both:
	case t.first:
		text += ", first service"
	default:
		text += ", last service"
	}
	return text
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
		list = append(list, t.question(result.ConnectionSetup, true))
		if !t.first {
			list = append(list, t.question(result.ConnectionRate, false))
		}
	}
	return append(list, result.Throughput, result.ThroughputCPU, result.Refusal)
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
// on the way of node ports, the masquerade that brings answers back by any node;
// or a refusal.
func (t target) staticRule(service netip.AddrPort) string {
	match := fmt.Sprintf("ip daddr %v tcp dport %d", service.Addr(), service.Port())
	if t.refused {
		return fmt.Sprintf(`table ip static {
	chain prerouting {
		type filter hook prerouting priority dstnat
		%s reject with tcp reset
	}
}
`, match)
	}
	masquerade := ""
	if t.outside {
		masquerade = `	chain postrouting {
		type nat hook postrouting priority srcnat
		ct status dnat masquerade
	}
`
	}
	return fmt.Sprintf(`table ip static {
	chain prerouting {
		type nat hook prerouting priority dstnat
		%s dnat to %v
	}
%s}
`, match, t.direct(), masquerade)
}
