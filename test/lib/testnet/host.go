package testnet

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// host is the side of a node that pods are attached to.
type host struct {
	ns       *Namespace
	addrs    Addrs
	podCIDRs []netip.Prefix
	bridge   string // empty: a veth pair for each pod and a route to it
}

// linkGateways are the pods' gateways without a bridge: link-local, and the
// same at the node's end of every pair.
func linkGateways() []netip.Prefix { return prefixes("169.254.1.1/32", "fe80::1/64") }

func (h *host) setUp() error {
	if h.bridge == "" {
		return nil
	}
	if err := h.ns.addBridge(h.bridge); err != nil {
		return err
	}
	var gateways []netip.Prefix
	for _, cidr := range h.podCIDRs {
		gateways = append(gateways, netip.PrefixFrom(gateway(cidr), cidr.Bits()))
	}
	return h.ns.addAddrs(h.bridge, gateways)
}

// attach connects a pod, whose namespace is still empty, to the node.
func (h *host) attach(pod *Pod) error {
	if err := connect(h.ns, pod.HostInterface, pod.NS, "eth0"); err != nil {
		return err
	}
	var single []netip.Prefix
	for _, a := range pod.Addrs {
		single = append(single, netip.PrefixFrom(a, a.BitLen()))
	}
	if err := pod.NS.addAddrs("eth0", single); err != nil {
		return err
	}
	toHost := h.attachDirectly
	if h.bridge != "" {
		toHost = h.attachToBridge
	}
	gateways, err := toHost(pod, single)
	if err != nil {
		return err
	}
	for _, gw := range gateways {
		if err := pod.NS.addDefaultRoute("eth0", gw); err != nil {
			return err
		}
	}
	return nil
}

// attachDirectly routes each address of the pod to its own interface, as the
// ptp CNI plugin does, and returns the pod's gateways.
func (h *host) attachDirectly(pod *Pod, addresses []netip.Prefix) ([]netip.Addr, error) {
	var gateways []netip.Addr
	for _, gw := range linkGateways() {
		// With link scope, masquerade and the node's own packets prefer the
		// node's real address.
		if err := h.ns.addAddr(pod.HostInterface, gw, unix.RT_SCOPE_LINK); err != nil {
			return nil, err
		}
		gateways = append(gateways, gw.Addr())
	}
	if err := linkUp(End{h.ns, pod.HostInterface}, End{pod.NS, "eth0"}); err != nil {
		return nil, err
	}
	for _, a := range addresses {
		if err := h.ns.addLinkRoute(a, pod.HostInterface, sameFamily(h.addrs, a.Addr())); err != nil {
			return nil, err
		}
	}
	return gateways, nil
}

func (h *host) attachToBridge(pod *Pod, _ []netip.Prefix) ([]netip.Addr, error) {
	for _, a := range pod.Addrs {
		if !contains(h.podCIDRs, a) {
			return nil, fmt.Errorf("%v is not in the bridge's %v", a, h.podCIDRs)
		}
	}
	if err := h.ns.addPort(h.bridge, pod.HostInterface, true); err != nil {
		return nil, err
	}
	if err := linkUp(End{h.ns, pod.HostInterface}, End{pod.NS, "eth0"}); err != nil {
		return nil, err
	}
	var gateways []netip.Addr
	for _, cidr := range h.podCIDRs {
		gateways = append(gateways, gateway(cidr))
	}
	return gateways, h.ns.awaitCarrier(h.bridge)
}

// sysctl is one kernel parameter.
type sysctl struct{ key, value string }

// quieten sets what is in force in every namespace: no reverse path filter, no
// redirects, no duplicate address detection, no router solicitation, no ration
// of ICMP errors. New
// interfaces inherit "default". A new namespace starts with values of the
// machine, so none is taken for granted.
func (ns *Namespace) quieten() error {
	settings := []sysctl{
		// Refusals by ICMP are to reach their client however many there are. The
		// masks lift the limit of all destinations together, too; that of IPv6
		// goes on for type 3, time exceeded.
		{"net.ipv4.icmp_ratemask", "0"},
		{"net.ipv6.icmp.ratemask", "3"},
	}
	for _, scope := range []string{"all", "default"} {
		v4, v6 := "net.ipv4.conf."+scope+".", "net.ipv6.conf."+scope+"."
		settings = append(settings,
			sysctl{v4 + "rp_filter", "0"},
			// Packets may leave by the interface they came from (hairpin): the
			// node must not send redirects for them.
			sysctl{v4 + "send_redirects", "0"},
			sysctl{v4 + "accept_redirects", "0"},
			sysctl{v6 + "accept_redirects", "0"},
			sysctl{v6 + "disable_ipv6", "0"},
			sysctl{v6 + "accept_dad", "0"},
			sysctl{v6 + "accept_ra", "0"},
			sysctl{v6 + "router_solicitations", "0"},
		)
	}
	return ns.apply(settings)
}

// Forward makes the namespace a router, also between an interface and itself.
func (ns *Namespace) Forward() error {
	return ns.apply([]sysctl{
		// Setting ip_forward resets some other values, of interfaces that are
		// not there yet.
		{"net.ipv4.ip_forward", "1"},
		{"net.ipv6.conf.all.forwarding", "1"},
		{"net.ipv6.conf.default.forwarding", "1"},
		{"net.ipv4.conf.all.send_redirects", "0"},
		{"net.ipv4.conf.default.send_redirects", "0"},
		{"net.ipv4.conf.all.accept_redirects", "0"},
		{"net.ipv4.conf.default.accept_redirects", "0"},
	})
}

func (ns *Namespace) apply(settings []sysctl) error {
	return ns.Do(func() error { // one thread for all
		for _, s := range settings {
			if err := writeSysctl(s.key, s.value); err != nil {
				return fmt.Errorf("set %s=%s in %s: %w", s.key, s.value, ns.name, err)
			}
		}
		return nil
	})
}

func (ns *Namespace) addAddrs(link string, addresses []netip.Prefix) error {
	for _, a := range addresses {
		if err := ns.AddAddr(link, a); err != nil {
			return err
		}
	}
	return nil
}
