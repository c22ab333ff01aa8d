package watch

import (
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
)

// cidrObject is a ServiceCIDR (KEP-1880) as the index keeps it.
type cidrObject struct {
	identity
	cidrs []netip.Prefix
}

// convertCIDR keeps a ServiceCIDR's ranges, at most one of each family.
func convertCIDR(c *networkingv1.ServiceCIDR) *cidrObject {
	object := &cidrObject{identity: identify(&c.ObjectMeta)}
	p := problemsOf("ServiceCIDR", &c.ObjectMeta)
	for i, text := range c.Spec.CIDRs {
		cidr, err := parseCIDR(text)
		if err != nil {
			p.add(item("spec.cidrs", i), err)
			continue
		}
		object.cidrs = append(object.cidrs, cidr)
	}
	object.problems = p.all()
	return object
}
