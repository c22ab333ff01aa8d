package scenario

import (
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/test/lib/testnet"
)

// place is a namespace of the world: one of the constants, or the text of a
// pod's address.
type place string

const (
	onNode  place = "node"
	outside place = "outside"
	remote  place = "remote"
	beyond  place = "beyond"
)

// server is a place, protocol and address where a server listens.
type server struct {
	where    place
	protocol string
	at       netip.AddrPort
}

// plan has the places of addresses and servers in one step.
type plan struct {
	// homes has the place of every address, without the node's and loopback ones.
	homes map[netip.Addr]place
	// node are the node's addresses, in the order in which they come.
	node []netip.Addr
	// networks are reached by the link to beyond, as by a route of their own.
	networks []netip.Prefix
	servers  map[server]bool
}

// draft returns the plan that the step's flows need.
func draft(step *Step, snapshot service.Snapshot) *plan {
	p := &plan{homes: map[netip.Addr]place{}, node: step.Addresses, networks: step.Networks, servers: map[server]bool{}}
	flows := slices.Concat(step.Flows, step.Packets, step.KubeProxy)
	for _, other := range step.KubeProxyOther {
		flows = append(flows, other...)
	}
	for _, f := range flows {
		if f.Origin == Pod {
			p.addHome(f.Source.Addr(), place(f.Source.Addr().String()))
		}
	}
	for _, e := range endpoints(snapshot) {
		if e.Node == NodeName || e.Node == snapshot.Node.Name {
			p.addHome(e.Addr.Addr(), place(e.Addr.Addr().String()))
		}
	}
	for _, e := range endpoints(snapshot) {
		p.addHome(e.Addr.Addr(), remote)
	}
	for _, f := range flows {
		if f.Origin == Outside {
			p.addHome(f.Source.Addr(), outside)
		}
	}
	for _, f := range flows {
		if f.Want.Fate != Echoed { // no host has the address, so that none can answer
			p.addHome(f.Destination.Addr(), beyond)
		}
	}
	p.open(step, snapshot, flows)
	return p
}

// open puts a server at each endpoint and at each flow's own destination.
func (p *plan) open(step *Step, snapshot service.Snapshot, flows []Flow) {
	serve := func(protocol string, at netip.AddrPort) {
		if !slices.Contains(step.Closed, at) {
			p.servers[server{p.home(at.Addr()), protocol, at}] = true
		}
	}
	for _, s := range snapshot.Services.All() {
		for i := range s.Ports {
			p := &s.Ports[i]
			for e := range p.Endpoints.All() {
				if !p.IsRange() {
					serve(p.Protocol.String(), e.Addr)
					continue
				}
				for _, f := range flows { // ranges keep the port that a flow asks for
					if f.Protocol == p.Protocol.String() && p.Ranges.Has(f.Destination.Port()) {
						serve(f.Protocol, netip.AddrPortFrom(e.Addr.Addr(), f.Destination.Port()))
					}
				}
			}
		}
	}
	for _, f := range flows {
		if f.Protocol != testnet.ICMP && f.Protocol != HTTP { // the kernel answers, or the proxy
			serve(f.Protocol, f.Destination)
		}
	}
}

// addHome puts an address into a place unless it has one.
func (p *plan) addHome(a netip.Addr, where place) {
	if p.home(a) == "" {
		p.homes[a] = where
	}
}

// home returns the place of an address, empty if it has none.
func (p *plan) home(a netip.Addr) place {
	if a.IsLoopback() || slices.Contains(p.node, a) {
		return onNode
	}
	return p.homes[a]
}

// isPod returns whether the place is a pod.
func (w place) isPod() bool {
	return !slices.Contains([]place{onNode, outside, remote, beyond}, w)
}

func endpoints(snapshot service.Snapshot) []service.Endpoint {
	var list []service.Endpoint
	for _, s := range snapshot.Services.All() {
		for i := range s.Ports {
			list = slices.AppendSeq(list, s.Ports[i].Endpoints.All())
		}
	}
	return list
}
