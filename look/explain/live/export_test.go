package live

import (
	"net/netip"

	"nftproxy/look/explain"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/node/hostaddr"
)

// NewNode makes a Node that asks lookup for routes, and does not ask the kernel.
func NewNode(tables *nft.Model, table string, lookup func(netip.Addr) (hostaddr.Route, error)) *Node {
	none := func(string, netip.Addr) (bool, error) { return false, nil }
	n := &Node{lookup: lookup, has: none, routes: map[netip.Addr]hostaddr.Route{}, own: map[netip.Addr]bool{}}
	n.facts = explain.Facts{Tables: tables, Table: table, Local: n.local, Way: n.way}
	return n
}

// AddOther adds the table of another nftproxy, which was made later than that of the Node.
func (n *Node) AddOther(tables *nft.Model, table string) {
	for _, f := range nft.Families() {
		n.asked = append(n.asked,
			askedTable{info: kernel.TableInfo{ID: nft.TableID{Family: f, Name: table}, Handle: 2}, contents: tables},
			askedTable{info: kernel.TableInfo{ID: nft.TableID{Family: f, Name: n.facts.Table}, Handle: 1}})
	}
}
