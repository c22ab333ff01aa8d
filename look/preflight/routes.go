package preflight

import (
	"context"
	"fmt"
	"net/netip"

	"nftproxy/model/ip"
	"nftproxy/nft"
	"nftproxy/node/hostaddr"
)

// routes tells whether processes of the node can connect to cluster IPs: connect() asks the routes for the address
// before any rule sees a packet. Without ServiceCIDRs it asks for an address that only the default route has, of each
// family in which the node has one of its own that is not for the link only.
func (o Options) routes(ctx context.Context) []Finding {
	const probe = "routes"
	var found []Finding
	if len(o.ServiceCIDRs) > 0 {
		for _, r := range o.ServiceCIDRs {
			// The last address, as far as it is one of a host: networks of a node inside the range are seldom there.
			found = append(found, routeFinding(fmt.Sprintf("%s: %s", probe, r), nft.LastAddr(r).Prev(),
				"the service range "+r.String(), fmt.Sprintf("ip route add %s dev INTERFACE, by any interface that is up", r)))
		}
		return found
	}
	for _, family := range ip.Families() {
		has, err := hasAddress(ctx, family)
		if err != nil {
			return []Finding{failed(probe, err)}
		}
		if has {
			found = append(found, routeFinding(probe+": "+family.Name(), family.Example(),
				"addresses that are not on its networks",
				"add a default route, or a route to the range of the Services: nftproxy check --service-cidr RANGE looks for that"))
		}
	}
	return found
}

// routeFinding is about the way to an address that stands for others.
func routeFinding(probe string, to netip.Addr, what, remedy string) Finding {
	route, err := hostaddr.Lookup(to)
	switch {
	case err != nil:
		return failed(probe, err)
	case route.Refusal != "":
		return yellow(probe, fmt.Sprintf("the node has %s to %s (%s): connect() of its own processes to a cluster IP fails "+
			"before any rule sees a packet", route.Refusal, what, to), remedy)
	}
	return green(probe, fmt.Sprintf("the node has a route to %s", what))
}

// hasAddress says whether an interface has an address of the family that is not for the link or the node only.
func hasAddress(ctx context.Context, family ip.Family) (bool, error) {
	addrs, err := hostaddr.List(ctx)
	for _, a := range addrs.Own {
		if family.Has(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return true, nil
		}
	}
	return false, err
}
