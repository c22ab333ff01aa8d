package watch

import (
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
)

// cidrObject is what is kept of a ServiceCIDR (KEP-1880).
type cidrObject struct {
	identity
	cidrs    []netip.Prefix
	problems []Problem
}

// convertCIDR keeps a ServiceCIDR's ranges, at most one of each family.
func convertCIDR(c *networkingv1.ServiceCIDR) *cidrObject {
	object := &cidrObject{identity: identify(&c.ObjectMeta)}
	p := problemsOf("ServiceCIDR", &c.ObjectMeta)
	for i, text := range c.Spec.CIDRs {
		cidr, err := netip.ParsePrefix(text)
		if err != nil {
			p.value(item("spec.cidrs", i), text, "not a CIDR")
			continue
		}
		object.cidrs = append(object.cidrs, cidr.Masked())
	}
	object.problems = p.all()
	return object
}
