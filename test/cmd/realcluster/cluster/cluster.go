package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

// Config says how a cluster is.
type Config struct {
	// Dir takes all files. It must be on a file system that overlayfs accepts as
	// its upper one.
	Dir string
	// Nodes is how many nodes there are at the beginning.
	Nodes int
	// Init is the command line that calls InitMachine.
	Init     []string
	Software Software
	// Images are archives with the images of pods, nftproxy's among them.
	Images []string
	// Proxy is the name of the service proxy's DaemonSet in kube-system.
	Proxy   string
	Network Network
	// Policies are the families that a DaemonSet enforces NetworkPolicies for.
	Policies []corev1.IPFamily
	// DaemonSets are the namespaces and names of those that nodes need beside the
	// proxy's, such as kube-flannel/flannel. Deployments are those that the cluster needs
	// beside the name service.
	DaemonSets, Deployments []string
	// Manifests are objects that are applied before the nodes come, those of the
	// proxy and of DaemonSets among them. Manifests of the name service are not.
	Manifests func(ctx context.Context, api netip.AddrPort) ([]string, error)
	// Settings are objects that are applied once the pods of all of these are ready: objects
	// of kinds that Manifests define.
	Settings []string
	// ControllerFlags are further flags of kube-controller-manager.
	ControllerFlags []string
	// Log takes progress.
	Log io.Writer
}

// Network says who makes the pods' network, and which addresses pods get.
type Network int

const (
	// NodeRanges is a network of the CNI plugins ptp and portmap, and of routes between the nodes. Pods have addresses in
	// their Node's podCIDRs.
	NodeRanges Network = iota
	// OtherRanges is the same, with addresses in PodCIDRs and outside of every Node's podCIDRs, as from CNI plugins that
	// have ranges of their own.
	OtherRanges
	// ForeignNetwork is that of a DaemonSet, with the CNI plugins in Software.Tools.
	ForeignNetwork
)

// Cluster is a cluster that runs. Its methods may be called by several goroutines.
type Cluster struct {
	// Outside is the network that the nodes are on, with an address of its own:
	// a client here is outside of the cluster. The control plane runs here.
	Outside *testnet.Namespace
	Plane   *controlplane.Cluster
	Client  *kubernetes.Clientset
	config  Config

	mu    sync.Mutex
	nodes map[string]*member
	next  int // number of the next node
}

// member is a node with its network.
type member struct {
	*node
	ns    *testnet.Namespace
	link  string // in the outside namespace
	addrs []netip.Addr
}

// The addresses and names of links. They are in namespaces, so they clash with nothing.
const lan = "lan" // the bridge

// cgroup is the path of the cluster's cgroup in every hierarchy, by its folder: two
// clusters have two.
func cgroup(dir string) string { return "/" + filepath.Base(dir) }

// Addresses of load balancers are on the network of the nodes, and in no range of theirs. Clients outside ask them from
// an address that is not one of the nodes' ranges either, as clients behind a router do: Kubernetes' tests take those
// in the ranges for nodes.

// LoadBalancerRanges are the addresses that a program on nodes may announce for load balancers.
func LoadBalancerRanges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:113::/120")}
}

// clientAddrs are those that clients outside ask load balancers from.
func clientAddrs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:100::1")}
}

func outsideAddrs() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("172.30.0.1/24"), netip.MustParsePrefix("fd00:30::1/64")}
}

// NodeNetworks are the ranges of the addresses of the nodes and of the one outside.
func NodeNetworks() []netip.Prefix {
	var ranges []netip.Prefix
	for _, p := range outsideAddrs() {
		ranges = append(ranges, p.Masked())
	}
	return ranges
}

// IsOutside says whether an address is one outside of the nodes.
func IsOutside(a netip.Addr) bool {
	return slices.Contains(clientAddrs(), a.Unmap()) || slices.ContainsFunc(outsideAddrs(), func(p netip.Prefix) bool {
		return p.Addr() == a.Unmap()
	})
}

// PodCIDRs are the ranges of the pods' addresses.
func PodCIDRs() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}
}

// otherRange is a range of pods' addresses that is no Node's in place of one that is a Node's: it has the first bit
// after the cluster's range. Nodes get theirs from the lowest on.
func otherRange(ofNode netip.Prefix) netip.Prefix {
	for _, all := range PodCIDRs() {
		if all.Overlaps(ofNode) {
			b := ofNode.Addr().AsSlice()
			b[all.Bits()/8] |= 0x80 >> (all.Bits() % 8)
			a, _ := netip.AddrFromSlice(b)
			return netip.PrefixFrom(a, ofNode.Bits())
		}
	}
	return ofNode
}

// dnsAddr is the cluster IP of the name service in manifests/dns.yaml.
func dnsAddr() netip.Addr { return netip.MustParseAddr("10.96.0.10") }

// nodeAddrs are the addresses of a node by its number, from 1 on.
func nodeAddrs(number int) []netip.Prefix {
	var addrs []netip.Prefix
	for _, p := range outsideAddrs() {
		b := p.Addr().AsSlice()
		b[len(b)-1] += byte(10 + number)
		a, _ := netip.AddrFromSlice(b)
		addrs = append(addrs, netip.PrefixFrom(a, p.Bits()))
	}
	return addrs
}

// zones is how many zones the nodes are in by turns: as many as Kubernetes' tests of
// topology want.
const zones = 3

// zone is the zone of a node by its number.
func zone(number int) string { return fmt.Sprintf("zone-%d", (number-1)%zones+1) }

// Start brings a cluster up: it returns once all nodes are ready, and the pods of
// the proxy and of the name service.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	c := &Cluster{config: config, nodes: map[string]*member{}}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	began := time.Now()
	if err := c.makeNetwork(); err != nil {
		return err
	}
	dir := filepath.Join(c.config.Dir, "control-plane")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var err error
	c.Plane, err = controlplane.Start(ctx, controlplane.Config{
		Dir: dir, NetNS: c.Outside.Path(), ListenAddr: outsideAddrs()[0].Addr(), PodCIDRs: PodCIDRs(),
		ControllerFlags: c.config.ControllerFlags, Log: c.config.Log,
	})
	if err != nil {
		return err
	}
	if c.Client, err = kubernetes.NewForConfig(c.Plane.Client()); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if err := c.applyManifests(ctx); err != nil {
		return err
	}
	var group errgroup.Group
	for range c.config.Nodes {
		group.Go(func() error {
			name, err := c.AddNode(ctx)
			if err == nil {
				c.logf("node %s ready after %v", name, time.Since(began).Round(time.Second))
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := c.awaitSystemPods(ctx); err != nil {
		return err
	}
	if err := c.Plane.Apply(ctx, c.config.Settings...); err != nil {
		return err
	}
	c.logf("%s and CoreDNS ready after %v", c.config.Proxy, time.Since(began).Round(time.Second))
	return nil
}

// makeNetwork makes the outside: a bridge with an address, which routes.
func (c *Cluster) makeNetwork() error {
	var err error
	if c.Outside, err = testnet.New("outside"); err != nil {
		return err
	}
	if err := errors.Join(forward(c.Outside), c.Outside.Bridge(lan)); err != nil {
		return err
	}
	for _, a := range outsideAddrs() {
		if err := c.Outside.AddAddr(lan, a); err != nil {
			return err
		}
	}
	for i, a := range clientAddrs() {
		alone, err := a.Prefix(a.BitLen())
		if err != nil {
			return err
		}
		at := testnet.End{NS: c.Outside, Link: lan}
		if err := errors.Join(c.Outside.AddAddr(lan, alone), at.RouteFrom(LoadBalancerRanges()[i], a)); err != nil {
			return err
		}
	}
	return nil
}

// forward makes a namespace route packets.
func forward(ns *testnet.Namespace) error {
	return errors.Join(ns.Sysctl("net.ipv4.ip_forward", "1"), ns.Sysctl("net.ipv6.conf.all.forwarding", "1"))
}

// AddNode starts one more node and returns its name once it is ready.
func (c *Cluster) AddNode(ctx context.Context) (string, error) {
	c.mu.Lock()
	c.next++
	number := c.next
	c.mu.Unlock()
	name := fmt.Sprintf("node-%d", number)
	m := &member{link: name}
	for _, a := range nodeAddrs(number) {
		m.addrs = append(m.addrs, a.Addr())
	}
	if err := c.connect(m, name, number); err != nil {
		return "", errors.Join(err, m.close())
	}
	kubeconfig, err := c.Plane.UserKubeconfig(name, "system:node:"+name, "system:nodes")
	if err != nil {
		return "", errors.Join(err, m.close())
	}
	m.node, err = startNode(ctx, m.ns, c.Client, nodeConfig{
		Name: name, Dir: filepath.Join(c.config.Dir, name), Cgroup: cgroup(c.config.Dir) + "/" + name, Init: c.config.Init,
		Addrs: m.addrs, Labels: map[string]string{corev1.LabelTopologyZone: zone(number)}, Kubeconfig: kubeconfig,
		Authority: c.Plane.AuthorityPath(), DNS: []netip.Addr{dnsAddr()},
		Images: c.config.Images, Software: c.config.Software, Network: c.config.Network,
	})
	if err != nil {
		return "", errors.Join(err, m.close())
	}
	if err := c.introduce(name, m); err != nil {
		return "", err
	}
	return name, m.AwaitReady(ctx, c.Client)
}

// connect makes the node's network.
func (c *Cluster) connect(m *member, name string, number int) error {
	var err error
	if m.ns, err = testnet.New(name); err != nil {
		return err
	}
	here, there := testnet.End{NS: c.Outside, Link: m.link}, testnet.End{NS: m.ns, Link: "eth0"}
	if err := errors.Join(testnet.Pair(here, there), here.Port(lan), forward(m.ns)); err != nil {
		return err
	}
	for i, a := range nodeAddrs(number) {
		gateway := outsideAddrs()[i].Addr()
		everything, _ := gateway.Prefix(0)
		if err := errors.Join(m.ns.AddAddr("eth0", a), m.ns.AddRoute(everything, gateway)); err != nil {
			return err
		}
	}
	return nil
}

// introduce routes the pods of a new node on all others, and theirs on it, if no
// other program makes the pods' network. Outside has the routes in any case: the
// API server opens connections to pods.
func (c *Cluster) introduce(name string, m *member) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[name] = m
	errs := []error{m.routePodsAt(testnet.End{NS: c.Outside, Link: lan})}
	for _, other := range c.nodes {
		if other != m && c.config.Network != ForeignNetwork {
			errs = append(errs, m.routePodsAt(testnet.End{NS: other.ns, Link: "eth0"}),
				other.routePodsAt(testnet.End{NS: m.ns, Link: "eth0"}))
		}
	}
	return errors.Join(errs...)
}

// routePodsAt adds routes to the node's pods at an interface.
func (m *member) routePodsAt(at testnet.End) error {
	var errs []error
	for _, cidr := range m.PodCIDRs {
		i := slices.IndexFunc(m.addrs, func(a netip.Addr) bool { return a.Is4() == cidr.Addr().Is4() })
		errs = append(errs, at.Route(cidr, m.addrs[i]))
	}
	return errors.Join(errs...)
}

// RemoveNode ends a node, as a power cut does. The Node object stays.
func (c *Cluster) RemoveNode(name string) error {
	c.mu.Lock()
	m, found := c.nodes[name]
	delete(c.nodes, name)
	c.mu.Unlock()
	if !found {
		return fmt.Errorf("there is no node %s", name)
	}
	return m.close()
}

func (m *member) close() error {
	var errs []error
	if m.node != nil {
		errs = append(errs, m.node.Close())
	}
	if m.ns != nil {
		errs = append(errs, m.ns.Close())
	}
	return errors.Join(errs...)
}

// Nodes are the names of the nodes, sorted.
func (c *Cluster) Nodes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for n := range c.nodes {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Proxy is the name of the service proxy's DaemonSet in kube-system.
func (c *Cluster) Proxy() string { return c.config.Proxy }

// Network says who makes the pods' network.
func (c *Cluster) Network() Network { return c.config.Network }

// Policies are the families that NetworkPolicies are enforced for.
func (c *Cluster) Policies() []corev1.IPFamily { return c.config.Policies }

// Addrs are the addresses of a node.
func (c *Cluster) Addrs(name string) []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.nodes[name]; m != nil {
		return m.addrs
	}
	return nil
}

// NetworkOf is the network namespace of a node; nil if there is no such node.
func (c *Cluster) NetworkOf(name string) *testnet.Namespace {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.nodes[name]; m != nil {
		return m.ns
	}
	return nil
}

// Shell is a command of a shell on a node, which a person there may give, for the
// caller to start.
func (c *Cluster) Shell(ctx context.Context, name, script string) (*exec.Cmd, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.nodes[name]
	if m == nil {
		return nil, fmt.Errorf("there is no node %s", name)
	}
	return m.Shell(ctx, script), nil
}

// Close ends all processes of the cluster and removes its namespaces and cgroups.
// The files stay for Remove.
func (c *Cluster) Close() error {
	var errs []error
	for _, name := range c.Nodes() {
		errs = append(errs, c.RemoveNode(name))
	}
	if c.Plane != nil {
		c.Plane.Stop()
	}
	if c.Outside != nil {
		errs = append(errs, c.Outside.Close())
	}
	return errors.Join(append(errs, RemoveCgroup(cgroup(c.config.Dir)))...)
}

// Remove removes what a cluster of a process that has ended left in a folder, and
// its cgroups.
func Remove(dir string) error {
	return errors.Join(RemoveCgroup(cgroup(dir)), os.RemoveAll(dir))
}

func (c *Cluster) logf(format string, args ...any) {
	fmt.Fprintf(c.config.Log, format+"\n", args...)
}
