package preflight

import (
	"context"
	"fmt"
	"net/netip"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
)

// ownTables reads the tables of nftproxy in the kernel.
type ownTables func() ([]*nft.Contents, error)

// networks looks for networks of the node inside the cluster's ServiceCIDRs, by default those of the tables.
func (o Options) networks(ctx context.Context, tables ownTables) []Finding {
	const probe = "networks"
	cidrs := o.ServiceCIDRs
	if len(cidrs) == 0 {
		list, err := tables()
		if err != nil {
			return []Finding{failed(probe, err)}
		}
		for _, c := range list {
			cidrs = append(cidrs, ruleset.ServiceCIDRs(c)...)
		}
	}
	if len(cidrs) == 0 {
		return []Finding{green(probe, "the ServiceCIDRs are not known here, so no network was compared with them "+
			"(--service-cidr)")}
	}
	found, err := new(hostaddr.Networks).In(ctx, cidrs)
	switch {
	case err != nil:
		return []Finding{failed(probe, err)}
	case len(found) > 0:
		return []Finding{yellow(probe, fmt.Sprintf("the node is on, or has routes to, %s, inside the ServiceCIDRs %s",
			prefixes(found), prefixes(cidrs)),
			"move the network, or give the cluster another ServiceCIDR: nftproxy does not drop packets there, but a Service "+
				"may get the address of a host")}
	}
	return []Finding{green(probe, "none of the node's is in the ServiceCIDRs "+prefixes(cidrs))}
}

// tables are those of nftproxy in the kernel; none where it has not run.
func (o Options) tables() ([]*nft.Contents, error) {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	model, err := conn.Read(ruleset.Compile(ruleset.Config{Table: o.Table}, service.Snapshot{Node: &service.Node{}}))
	if err != nil {
		return nil, err
	}
	var list []*nft.Contents
	for _, f := range nft.Families() {
		if c := model.Table(nft.TableID{Family: f, Name: o.Table}); c != nil {
			list = append(list, c)
		}
	}
	return list, nil
}

// prefixes lists prefixes, of which it names eight.
func prefixes(list []netip.Prefix) string {
	var texts []string
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return shortList(texts)
}
