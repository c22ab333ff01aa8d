package preflight

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/ip"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/node/forwarding"
	"nftproxy/node/hostaddr"
)

// bridges looks for pods on a bridge that reach no Service of which they are the endpoint themselves. Where rules see
// the packets of bridges (bridge-nf-call-iptables), they translate them there: the bridge then has to send such a
// packet back by the port that it came by. The pods are the endpoints on the node in the tables of nftproxy.
func (o Options) bridges(tables ownTables) []Finding {
	const probe = "bridges"
	list, err := tables()
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	pods := localEndpoints(list)
	if len(pods) == 0 {
		return []Finding{green(probe, "no pod of the node is an endpoint of nftproxy's tables, so no bridge was looked at")}
	}
	devices, err := hostaddr.OnLink(pods)
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	s, err := forwarding.Read(o.Proc)
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	var found []string
	for i := range s.Interfaces {
		b := &s.Interfaces[i]
		oneWay := b.Kind == "bridge" && !b.Promiscuous && slices.ContainsFunc(s.Ports(b),
			func(p *forwarding.Interface) bool { return p.Kind == "veth" && !p.Hairpin })
		if oneWay && slices.Contains(devices, b.Name) && (s.Sees(b, ip.V4) || s.Sees(b, ip.V6)) {
			found = append(found, b.Name)
		}
	}
	slices.Sort(found)
	if len(found) > 0 {
		return []Finding{yellow(probe, fmt.Sprintf("%s: ports are not in hairpin mode: a pod there gets no answer from a "+
			"Service that chooses the pod itself", strings.Join(found, ", ")),
			`set "hairpinMode": true for the CNI plugin bridge (of kube-router: in /etc/cni/net.d/10-kuberouter.conflist), `+
				`and start the pods anew; for one pod: bridge link set dev PORT hairpin on`)}
	}
	return []Finding{green(probe, "pods on bridges reach themselves through Services, or there is no bridge")}
}

func localEndpoints(list []*nft.Contents) (pods []netip.Addr) {
	for _, c := range list {
		pods = append(pods, ruleset.LocalEndpoints(c)...)
	}
	return pods
}

// podDevices returns the interfaces that lead to the endpoints of a family on the node in the tables of nftproxy.
func podDevices(tables ownTables, f ip.Family) ([]string, error) {
	list, err := tables()
	if err != nil {
		return nil, err
	}
	return hostaddr.OnLink(slices.DeleteFunc(localEndpoints(list), func(a netip.Addr) bool { return !f.Has(a) }))
}
