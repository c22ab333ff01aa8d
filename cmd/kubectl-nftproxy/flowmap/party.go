package flowmap

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/service"
)

// Party is one end of connections: a workload, a pod, a node or an address. It can be compared.
type Party struct {
	// Kind is such as deployment, pod or node; empty for an address.
	Kind string `json:"kind,omitempty"`
	// Namespace is empty for nodes and addresses.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Others stands for the addresses without a name beyond the busiest ones.
func Others() Party { return Party{Name: "other addresses"} }

// String is such as deployment/shop/cart, node/worker-1 or 192.0.2.1; empty for nobody.
func (p Party) String() string {
	parts := []string{p.Kind, p.Namespace, p.Name}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "/")
}

func (p Party) compare(q Party) int { return strings.Compare(p.String(), q.String()) }

// Names returns who has an address, as a workload; the zero Party if nobody is known to.
type Names func(netip.Addr) Party

// Port is a port of a Service. It can be compared.
type Port struct {
	Service service.Name `json:"service"`
	// Port is its name or number, and Protocol such as tcp.
	Port     string `json:"port"`
	Protocol string `json:"protocol"`
}

// String is such as shop/cart:http/tcp.
func (p Port) String() string {
	return string(p.Service) + ":" + cmp.Or(p.Port, "-") + "/" + strings.ToLower(p.Protocol)
}

func (p Port) compare(q Port) int { return strings.Compare(p.String(), q.String()) }
