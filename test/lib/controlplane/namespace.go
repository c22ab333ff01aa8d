package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"k8s.io/client-go/kubernetes"

	"nftproxy/test/lib/testnet"
)

// Plane is a running control plane in a network namespace of its own, with a link to each node of a test or benchmark.
// The nodes are network namespaces of the caller.
type Plane struct {
	// NS is the namespace of the control plane.
	NS *testnet.Namespace
	// Config is the configuration of the control plane.
	Config  Config
	Cluster *Cluster
	Client  *kubernetes.Clientset
	// nodes is the number of connected nodes so far.
	nodes int
}

// StartInNamespace starts a control plane whose API server listens on config.ListenAddr. That must
// be a single IPv4 address and not a loopback one, so that the Service default/kubernetes
// has an endpoint.
func StartInNamespace(ctx context.Context, config Config) (*Plane, error) {
	ns, err := testnet.New("control-plane")
	if err != nil {
		return nil, err
	}
	p := &Plane{NS: ns, Config: config}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

func (p *Plane) start(ctx context.Context) error {
	if err := p.NS.AddAddr("lo", p.apiPrefix()); err != nil {
		return err
	}
	p.Config.NetNS = p.NS.Path()
	var err error
	if p.Cluster, err = Start(ctx, p.Config); err != nil {
		return err
	}
	if p.Client, err = kubernetes.NewForConfig(p.Cluster.Client()); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return nil
}

// apiPrefix is the API server's address, as a prefix of this one address.
func (p *Plane) apiPrefix() netip.Prefix { return netip.PrefixFrom(p.Config.ListenAddr, 32) }

// Nodes is the number of connected nodes so far.
func (p *Plane) Nodes() int { return p.nodes }

// Connect joins a node with the control plane by a link of its own. The link is called
// mgmt on the node.
func (p *Plane) Connect(node *testnet.Namespace) error {
	p.nodes++
	near, far := "mgmt", fmt.Sprintf("node%d", p.nodes)
	// Networks of four addresses out of 172.31.0.0/16.
	planeEnd := netip.AddrFrom4([4]byte{172, 31, byte(p.nodes >> 6), byte(p.nodes<<2) + 1})
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near}, PeerName: far, PeerNamespace: netlink.NsFd(p.NS.Fd())}
	err := node.Handle().LinkAdd(veth)
	for _, end := range []struct {
		ns   *testnet.Namespace
		link string
		addr netip.Addr
	}{{p.NS, far, planeEnd}, {node, near, planeEnd.Next()}} {
		if err == nil {
			err = end.ns.AddAddr(end.link, netip.PrefixFrom(end.addr, 30))
		}
		var link netlink.Link
		if err == nil {
			link, err = end.ns.Handle().LinkByName(end.link)
		}
		if err == nil {
			err = end.ns.Handle().LinkSetUp(link)
		}
	}
	if err == nil {
		err = node.AddRoute(p.apiPrefix(), planeEnd)
	}
	if err != nil {
		return fmt.Errorf("connect a node with the control plane: %w", err)
	}
	return nil
}

// Stop ends the control plane and removes its namespace.
func (p *Plane) Stop() error {
	if p.Cluster != nil {
		p.Cluster.Stop()
	}
	return p.NS.Close()
}
