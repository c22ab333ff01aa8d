package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/service"
)

// NetworkError says that addresses in ServiceCIDRs also belong to real hosts.
type NetworkError struct {
	// Networks are those in ServiceCIDRs that the node is on or has routes to, Servers the API
	// servers in ServiceCIDRs.
	Networks []netip.Prefix
	Servers  []netip.Addr
	CIDRs    []netip.Prefix
}

func (e *NetworkError) Error() string {
	var what []string
	if len(e.Networks) > 0 {
		what = append(what, "the node is on, or has routes to, "+listed(e.Networks))
	}
	if len(e.Servers) > 0 {
		what = append(what, "an API server has the address "+listed(e.Servers))
	}
	return fmt.Sprintf("%s, inside the ServiceCIDR %s: packets there are not dropped where no Service has the address, "+
		"and a Service may get the address of a host. Move the network, or give the cluster another ServiceCIDR",
		strings.Join(what, "; "), listed(e.CIDRs))
}

// listed joins texts, of which it names eight.
func listed[T fmt.Stringer](list []T) string {
	const most = 8
	var texts []string
	for _, one := range list[:min(len(list), most)] {
		texts = append(texts, one.String())
	}
	if len(list) > most {
		texts = append(texts, fmt.Sprintf("%d more", len(list)-most))
	}
	return strings.Join(texts, ", ")
}

// setNetworks tells the builder which networks and API servers lie in ServiceCIDRs, if that may have
// changed, and reports it. before is the Node of the last snapshot.
func (ix *index) setNetworks(before *service.Node) {
	if ix.unrouted && ix.options.Networks != nil {
		node := *ix.builder.Node()
		node.Networks = nil
		if ranges := ix.ranges(); len(ranges) > 0 {
			node.Networks = ix.options.Networks(ranges)
		}
		ix.builder.SetNode(node)
	}
	asked, now := ix.unrouted, ix.builder.Node()
	ix.unrouted = false
	if !asked && slices.Equal(before.Networks, now.Networks) && slices.Equal(before.APIServers, now.APIServers) {
		return
	}
	if e := ix.networkError(now); e != nil && e.Error() != ix.networksReported {
		ix.networksReported = e.Error()
		ix.reportNode("", e)
	}
}

// networkError says what of the node is in ServiceCIDRs; nil if there is nothing.
func (ix *index) networkError(node *service.Node) *NetworkError {
	e := &NetworkError{Networks: node.Networks}
	for _, r := range ix.ranges() {
		used := slices.ContainsFunc(node.Networks, r.Overlaps)
		for _, a := range node.APIServers {
			if r.Contains(a) && !slices.Contains(e.Servers, a) {
				e.Servers = append(e.Servers, a)
			}
			used = used || r.Contains(a)
		}
		if used {
			e.CIDRs = append(e.CIDRs, r)
		}
	}
	if len(e.CIDRs) == 0 {
		return nil
	}
	return e
}

// ranges are the ServiceCIDRs in force, sorted by their text.
func (ix *index) ranges() []netip.Prefix {
	var list []netip.Prefix
	for _, r := range ix.builder.Snapshot().ServiceCIDRs.All() {
		list = append(list, r)
	}
	return list
}

// apiServerAddresses are the addresses of API servers, sorted: those where the proxy has reached one,
// and the endpoints that default/kubernetes has or has had. The cluster IP of that Service is none,
// although the proxy may have reached it.
func (ix *index) apiServerAddresses() []netip.Addr {
	var list []netip.Addr
	for _, a := range slices.Concat(ix.apiServers, ix.apiEndpoints) {
		list = append(list, a.Addr())
	}
	if s := ix.builder.Service(kubernetesService); s != nil {
		list = slices.DeleteFunc(list, func(a netip.Addr) bool { return slices.Contains(s.ClusterIPs, a) })
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}
