package live

import (
	"net/netip"

	"nftproxy/look/explain"
	"nftproxy/nft"
	"nftproxy/node/hostaddr"
)

// NewNode makes a Node that asks lookup for routes, and does not ask the kernel.
func NewNode(tables *nft.Model, table string, lookup func(netip.Addr) (hostaddr.Route, error)) *Node {
	none := func(string, netip.Addr) (bool, error) { return false, nil }
	n := &Node{lookup: lookup, has: none, routes: map[netip.Addr]hostaddr.Route{}, own: map[netip.Addr]bool{}}
	n.facts = explain.Facts{Tables: tables, Table: table, Local: n.local, Way: n.way}
	return n
}
