package watch

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// taintToBeDeleted is the key of the taint that the cluster autoscaler gives a
// node before it takes the machine away.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// nodeObject is a Node as the index keeps it.
type nodeObject struct {
	identity
	// facts is the Node as the model has it, without host addresses.
	facts service.Node
	// addressed says that the status has an address, if only one that clients elsewhere cannot use.
	addressed bool
	// kubeletPort is the port on which its kubelet listens.
	kubeletPort uint16
}

// convertNode keeps a Node's zone, whether load balancers may choose it, its podCIDRs,
// and its InternalIPs and then its ExternalIPs, each in the object's order, without those that clients elsewhere cannot
// use.
func convertNode(n *corev1.Node) *nodeObject {
	object := &nodeObject{identity: identify(&n.ObjectMeta)}
	p := problemsOf("Node", &n.ObjectMeta)
	zone := n.Labels[corev1.LabelTopologyZone]
	if err := checkName(zone); err != nil {
		p.add("metadata.labels["+corev1.LabelTopologyZone+"]", err)
		zone = ""
	}
	object.facts = service.Node{Name: n.Name, Zone: zone, Eligible: eligible(n), PodCIDRs: podCIDRs(&n.Spec, p)}
	object.facts.Addresses, object.addressed = nodeAddresses(n, p)
	object.kubeletPort = kubeletPort(n, p)
	object.problems = p.all()
	return object
}

func kubeletPort(n *corev1.Node, p *problemList) uint16 {
	given := n.Status.DaemonEndpoints.KubeletEndpoint.Port
	if given == 0 {
		return defaultKubeletPort
	}
	port, err := parsePort(given)
	if err != nil {
		p.add("status.daemonEndpoints.kubeletEndpoint.Port", err)
		return defaultKubeletPort
	}
	return port
}

// eligible says whether load balancers may choose the node (KEP-3836).
func eligible(n *corev1.Node) bool {
	return n.DeletionTimestamp == nil &&
		!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintToBeDeleted })
}

func nodeAddresses(n *corev1.Node, p *problemList) (addrs []netip.Addr, addressed bool) {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, a := range n.Status.Addresses {
			if a.Type != kind {
				continue
			}
			addr, err := parseAddrFor(asNodeAddress, a.Address)
			if err != nil {
				// The kubelet has said which addresses there are, though these are of no use to clients elsewhere.
				own, _ := parseAddr(a.Address)
				addressed = addressed || own.IsLoopback() || own.IsLinkLocalUnicast()
				p.add(item("status.addresses", i)+".address", err)
				continue
			}
			if !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs, addressed || len(addrs) > 0
}

// podCIDRs returns spec.podCIDRs, or else spec.podCIDR, which Nodes had before
// dual-stack.
func podCIDRs(spec *corev1.NodeSpec, p *problemList) []netip.Prefix {
	ranges, field := spec.PodCIDRs, func(i int) string { return item("spec.podCIDRs", i) }
	if len(ranges) == 0 && spec.PodCIDR != "" {
		ranges, field = []string{spec.PodCIDR}, func(int) string { return "spec.podCIDR" }
	}
	var list []netip.Prefix
	var of ip.PerFamily[int] // the number of ranges
	for i, text := range ranges {
		cidr, err := parseCIDR(text)
		n := of.Of(ip.Of(cidr.Addr()))
		if err == nil && *n == service.MaxPodRanges {
			err = &ValueError{text, fmt.Sprintf("a Node has %d ranges of a family at most", service.MaxPodRanges)}
		}
		if err != nil {
			p.add(field(i), err)
			continue
		}
		if !slices.Contains(list, cidr) {
			list = append(list, cidr)
			*n++
		}
	}
	return list
}
