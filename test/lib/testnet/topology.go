package testnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
)

// Config chooses how a topology is made. The zero value is a good one: a veth
// pair for each pod.
type Config struct {
	// Bridge, if set, is the name of a bridge on the node. All pods are its ports, as
	// with the bridge CNI plugin ("cni0"). Packets between pods still pass the node's IP
	// layer.
	Bridge string
}

// Topology is a node with pods, on a LAN with a client and, once a remote pod
// is added, a second node. Everything is dual-stack.
//
//	pod ... pod            pod ... pod
//	   \   /                  \   /
//	   Node (.1)              Remote (.3)
//	     |  192.168.100.0/24    |
//	     +------ Outside -------+
//	               (.2)
//
// The nodes have routes to each other's pods. Their default route leads to Outside, which
// forwards nothing: a packet to a service address that no rule translates leaves by the
// uplink and gets no answer. All methods are safe for concurrent use.
type Topology struct {
	Node    *Namespace
	Outside *Namespace // no route to pods or services; add what a test needs
	Remote  *Namespace // nil before the first AddRemotePod

	Uplink       string         // the nodes' interface to the LAN: "eth0"
	OutsideLink  string         // the client's interface to the LAN: "lan"
	ClusterCIDRs []netip.Prefix // 10.244.0.0/16, fd00:244::/56
	PodCIDRs     []netip.Prefix // of Node: 10.244.0.0/24, fd00:244::/64
	NodeAddrs    Addrs          // 192.168.100.1, fd00:100::1
	OutsideAddrs Addrs          // 192.168.100.2, fd00:100::2
	RemoteAddrs  Addrs          // 192.168.100.3, fd00:100::3

	mu     sync.Mutex
	node   *host
	remote *host
	pods   map[string]*Pod
	links  int // pod links made so far, for their names
}

// Pod is a namespace with addresses of the cluster CIDR, on its interface eth0.
type Pod struct {
	Name          string
	NS            *Namespace
	Addrs         Addrs
	HostInterface string // the node's end of the pod's link: "veth0", "veth1"...

	host *host
}

// Addrs are the addresses of one thing, of both families.
type Addrs []netip.Addr

// V4 returns the first IPv4 address, or the zero Addr.
func (a Addrs) V4() netip.Addr { return a.first(netip.Addr.Is4) }

// V6 returns the first IPv6 address, or the zero Addr.
func (a Addrs) V6() netip.Addr { return a.first(netip.Addr.Is6) }

func (a Addrs) first(family func(netip.Addr) bool) netip.Addr {
	if i := slices.IndexFunc(a, family); i >= 0 {
		return a[i]
	}
	return netip.Addr{}
}

const (
	uplink = "eth0"
	lan    = "lan"
)

// NewTopology makes the node and the client outside. The error matches
// fs.ErrPermission when the process may not make namespaces.
func NewTopology(config Config) (*Topology, error) {
	t := &Topology{
		Uplink:       uplink,
		OutsideLink:  lan,
		ClusterCIDRs: prefixes("10.244.0.0/16", "fd00:244::/56"),
		PodCIDRs:     prefixes("10.244.0.0/24", "fd00:244::/64"),
		NodeAddrs:    addrs("192.168.100.1", "fd00:100::1"),
		OutsideAddrs: addrs("192.168.100.2", "fd00:100::2"),
		RemoteAddrs:  addrs("192.168.100.3", "fd00:100::3"),
		pods:         map[string]*Pod{},
	}
	if err := t.build(config); err != nil {
		return nil, errors.Join(fmt.Errorf("make topology: %w", err), t.Close())
	}
	return t, nil
}

func (t *Topology) build(config Config) error {
	var err error
	if t.Outside, err = New("outside"); err != nil {
		return err
	}
	if err := t.Outside.addBridge(lan); err != nil {
		return err
	}
	if err := t.Outside.addAddrs(lan, lanPrefixes(t.OutsideAddrs)); err != nil {
		return err
	}
	if err := t.Outside.dropUnrouted(lan); err != nil {
		return err
	}
	if t.Node, err = t.newNode("node", t.NodeAddrs); err != nil {
		return err
	}
	t.node = &host{ns: t.Node, addrs: t.NodeAddrs, podCIDRs: t.PodCIDRs, bridge: config.Bridge}
	return t.node.setUp()
}

// newNode makes a forwarding namespace and connects it to the LAN. It returns
// the namespace with an error too, if it made one.
func (t *Topology) newNode(name string, addresses Addrs) (*Namespace, error) {
	ns, err := New(name)
	if err != nil {
		return nil, err
	}
	if err := ns.Forward(); err != nil {
		return ns, err
	}
	if err := connect(t.Outside, name, ns, uplink); err != nil {
		return ns, err
	}
	if err := t.Outside.addPort(lan, name, false); err != nil {
		return ns, err
	}
	if err := ns.addAddrs(uplink, lanPrefixes(addresses)); err != nil {
		return ns, err
	}
	if err := linkUp(End{t.Outside, name}, End{ns, uplink}); err != nil {
		return ns, err
	}
	if err := t.Outside.awaitCarrier(lan); err != nil {
		return ns, err
	}
	for _, via := range t.OutsideAddrs {
		if err := ns.addDefaultRoute(uplink, via); err != nil {
			return ns, err
		}
	}
	return ns, nil
}

// ensureRemote makes the second node, unless there is one.
func (t *Topology) ensureRemote() error {
	if t.remote != nil {
		return nil
	}
	ns, err := t.newNode("remote", t.RemoteAddrs)
	remote := &host{ns: ns, addrs: t.RemoteAddrs, podCIDRs: prefixes("10.244.1.0/24", "fd00:244:0:1::/64")}
	if err == nil {
		err = t.introduce(t.node, remote)
	}
	if err != nil {
		if ns != nil {
			// Its end of the uplink goes with it, and with that the other end.
			err = errors.Join(err, ns.Close())
		}
		return err
	}
	t.Remote, t.remote = ns, remote
	return nil
}

// introduce routes the pods of each node to that node.
func (t *Topology) introduce(a, b *host) error {
	for _, way := range []struct{ from, to *host }{{a, b}, {b, a}} {
		for _, cidr := range way.to.podCIDRs {
			if err := way.from.ns.AddRoute(cidr, sameFamily(way.to.addrs, cidr.Addr())); err != nil {
				return err
			}
		}
	}
	return nil
}

// AddPod makes a pod on the node. Without addresses it gets the next free one
// of each family. In bridge mode addresses must be of PodCIDRs.
func (t *Topology) AddPod(name string, addresses ...netip.Addr) (*Pod, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addPod(t.node, name, addresses)
}

// AddRemotePod makes a pod on the other node, of 10.244.1.0/24 and
// fd00:244:0:1::/64; addresses given must be of these.
func (t *Topology) AddRemotePod(name string, addresses ...netip.Addr) (*Pod, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ensureRemote(); err != nil {
		return nil, fmt.Errorf("add remote node: %w", err)
	}
	for _, a := range addresses {
		if !contains(t.remote.podCIDRs, a) {
			return nil, fmt.Errorf("add remote pod %s: %v is not in %v", name, a, t.remote.podCIDRs)
		}
	}
	return t.addPod(t.remote, name, addresses)
}

func (t *Topology) addPod(h *host, name string, addresses Addrs) (*Pod, error) {
	if t.pods[name] != nil {
		return nil, fmt.Errorf("add pod %s: there is one", name)
	}
	if len(addresses) == 0 {
		addresses = t.freeAddrs(h)
	}
	ns, err := New(name)
	if err != nil {
		return nil, err
	}
	pod := &Pod{Name: name, NS: ns, Addrs: addresses, HostInterface: fmt.Sprintf("veth%d", t.links), host: h}
	t.links++
	if err := h.attach(pod); err != nil {
		// Closing the namespace takes its end of the pair, and with it ours.
		return nil, errors.Join(fmt.Errorf("add pod %s: %w", name, err), ns.Close())
	}
	t.pods[name] = pod
	return pod, nil
}

// freeAddrs returns the first address of each of the host's pod CIDRs, from the
// second on, that no pod has: the first is the gateway's in bridge mode.
func (t *Topology) freeAddrs(h *host) Addrs {
	used := map[netip.Addr]bool{}
	for _, p := range t.pods {
		for _, a := range p.Addrs {
			used[a] = true
		}
	}
	var free Addrs
	for _, cidr := range h.podCIDRs {
		a := gateway(cidr).Next()
		for used[a] {
			a = a.Next()
		}
		free = append(free, a)
	}
	return free
}

// Pod returns a pod by its name, or nil.
func (t *Topology) Pod(name string) *Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods[name]
}

// RemovePod stops the pod's servers and removes its link and namespace.
func (t *Topology) RemovePod(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	pod := t.pods[name]
	if pod == nil {
		return fmt.Errorf("remove pod %s: there is none", name)
	}
	delete(t.pods, name)
	// In this order, so that open connections see the servers close.
	err := errors.Join(pod.NS.Close(), pod.host.ns.delLink(pod.HostInterface))
	if err != nil {
		return fmt.Errorf("remove pod %s: %w", name, err)
	}
	return nil
}

// Close removes everything that the topology made. Processes started in its
// namespaces are the caller's to stop, before.
func (t *Topology) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for name, pod := range t.pods {
		errs = append(errs, pod.NS.Close())
		delete(t.pods, name)
	}
	for _, ns := range []*Namespace{t.Node, t.Remote, t.Outside} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}

func sameFamily(as Addrs, like netip.Addr) netip.Addr {
	if like.Is4() {
		return as.V4()
	}
	return as.V6()
}

func contains(ps []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a) })
}

// gateway returns the first usable address of a prefix.
func gateway(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }

// lanPrefixes returns addresses of the LAN with its prefix lengths.
func lanPrefixes(as Addrs) []netip.Prefix {
	var ps []netip.Prefix
	for _, a := range as {
		bits := 64
		if a.Is4() {
			bits = 24
		}
		ps = append(ps, netip.PrefixFrom(a, bits))
	}
	return ps
}

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func addrs(texts ...string) Addrs {
	var as Addrs
	for _, s := range texts {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}
