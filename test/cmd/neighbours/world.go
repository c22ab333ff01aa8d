package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"nftproxy/model/service"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

//go:embed objects.yaml
var objects string

const nodeName = "node-1"

// patience is how long an event may take that should take a second.
const patience = time.Minute

// trialSetup is what all trials have.
type trialSetup struct {
	// tree is the folder of makeTree, binary the path of nftproxy.
	tree, binary string
	// long is how long a flow may take that had no answer at once, and a connection of the load. On a busy machine it has
	// to be more.
	long time.Duration
	// calico is the folder of a checkout of Calico's repository; empty if there is none.
	calico string
	// attempts is how often a neighbour is tried until its verdict is good.
	attempts int
	// atOnce is how many flows of a table are asked at a time.
	atOnce int
	// quiet is without load: the table of flows alone decides.
	quiet bool
	// share is what nftproxy follows of the connections; none of it is said if it is FlowsAsNode.
	share service.Flows
}

// world is a node with the system of a neighbour, and nftproxy if it was started.
type world struct {
	net    *testnet.Topology
	system *system
	peers  []*system
	dir    string
	trialSetup
	proxy *child.Process
	// plane is the API server that the neighbour asks; nil if it asks none.
	plane *controlplane.Cluster
	// servers are programs in pods and on the other node.
	servers []*child.Process
	// behind is a client of the router outside; nil if that is none.
	behind *client
	// places are the namespaces that flows come from.
	places map[string]*testnet.Namespace
}

// Addresses of the servers that are no Services: each is asked directly.
const (
	podPort  = 8080
	nodeSide = 32100 // a server on the node, in the range of node ports as health checks are
	// healthPort is the healthCheckNodePort of the Service local.
	healthPort = 31200
)

func newWorld(ctx context.Context, s trialSetup) (w *world, err error) {
	w = &world{trialSetup: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.dir, err = os.MkdirTemp("", "neighbours-"); err != nil {
		return w, err
	}
	for _, d := range []string{"tree", "manifests"} {
		if err := os.Mkdir(filepath.Join(w.dir, d), 0o755); err != nil {
			return w, err
		}
	}
	if err := os.WriteFile(filepath.Join(w.dir, "manifests", "objects.yaml"), []byte(objects), 0o644); err != nil {
		return w, err
	}
	if w.net, err = testnet.NewTopology(testnet.Config{}); err != nil {
		return w, err
	}
	if err := w.populate(); err != nil {
		return w, err
	}
	w.system, err = startSystem(ctx, w.net.Node, s.tree, filepath.Join(w.dir, "tree"))
	return w, err
}

// populate makes the pods and servers. Their addresses are those that objects.yaml has.
func (w *world) populate() error {
	near, err := w.net.AddPod("near", netip.MustParseAddr("10.244.0.10"), netip.MustParseAddr("fd00:244::10"))
	if err != nil {
		return err
	}
	pod, err := w.net.AddPod("pod")
	if err != nil {
		return err
	}
	far, err := w.net.AddRemotePod("far", netip.MustParseAddr("10.244.1.10"), netip.MustParseAddr("fd00:244:0:1::10"))
	if err != nil {
		return err
	}
	w.places = map[string]*testnet.Namespace{"pod": pod.NS, "endpoint": near.NS, "node": w.net.Node,
		"outside": w.net.Outside, "other node's pod": far.NS}
	for i := range w.net.NodeAddrs {
		for _, p := range []*testnet.Pod{near, far} {
			for _, proto := range []string{testnet.TCP, testnet.UDP} {
				if _, err := p.NS.Serve(proto, netip.AddrPortFrom(p.Addrs[i], podPort), p.Name); err != nil {
					return err
				}
			}
		}
		for _, proto := range []string{testnet.TCP, testnet.UDP} {
			if _, err := w.net.Node.Serve(proto, netip.AddrPortFrom(w.net.NodeAddrs[i], nodeSide), "node"); err != nil {
				return err
			}
		}
		// The client outside knows the way to pods and to what the cluster's router announces, and the other node answers it
		// by this one: a firewall here then sees both directions.
		via, one := w.net.NodeAddrs[i], netip.PrefixFrom(w.net.OutsideAddrs[i], w.net.OutsideAddrs[i].BitLen())
		ways := []netip.Prefix{w.net.ClusterCIDRs[i], netip.MustParsePrefix([]string{"203.0.113.0/24", "2001:db8::/64"}[i])}
		for _, way := range ways {
			if err := w.net.Outside.AddRoute(way, via); err != nil {
				return err
			}
		}
		if err := w.net.Remote.AddRoute(one, via); err != nil {
			return err
		}
	}
	return nil
}

// startProxy starts nftproxy on the node and waits until its rules are in force.
func (w *world) startProxy(ctx context.Context) (err error) {
	if w.proxy, err = w.startOn(ctx, w.net.Node, nodeName); err != nil {
		return err
	}
	// The servers on ports of the node come up beside the loop.
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for _, a := range w.net.NodeAddrs {
		for {
			if status, err := getHealth(ctx, w.net.Node, netip.AddrPortFrom(a, healthPort), w.long); err != nil ||
				status == healthy {
				break
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-w.proxy.Exited():
				return fmt.Errorf("nftproxy: %w\n%s", child.ErrEnded, w.proxy.Tail(10))
			}
		}
	}
	return nil
}

// startOther starts nftproxy on the other node.
func (w *world) startOther(ctx context.Context) error {
	p, err := w.startOn(ctx, w.net.Remote, "node-2")
	if p != nil {
		w.servers = append(w.servers, p)
	}
	return err
}

// startOn starts nftproxy, and waits for its first sync.
func (w *world) startOn(ctx context.Context, ns *testnet.Namespace, name string) (*child.Process, error) {
	var cidrs []string
	for _, c := range w.net.ClusterCIDRs {
		cidrs = append(cidrs, c.String())
	}
	cmd := exec.Command(w.binary, "run", "--nftproxy-manifests="+filepath.Join(w.dir, "manifests"), "--hostname-override="+
		name,
		"--cluster-cidr="+strings.Join(cidrs, ","), "--conntrack-max-per-core=0", "--nodeport-addresses=primary,localhost",
		"--v=2")
	if w.share != service.FlowsAsNode {
		cmd.Args = append(cmd.Args, "--nftproxy-flows="+w.share.String())
	}
	p, err := child.Start(ns, cmd)
	if err != nil {
		return nil, err
	}
	if _, _, err := p.Await(ctx, 0, child.Line.Synced); err != nil {
		err = fmt.Errorf("first sync of nftproxy on %s: %w\n%s", name, err, p.Tail(10))
		return p, err
	}
	if w.share == followAll {
		if _, _, err := p.Await(ctx, 0, func(l child.Line) bool { return l.Msg == "following connections" }); err != nil {
			return p, fmt.Errorf("nftproxy on %s follows nothing: %w\n%s", name, err, p.Tail(10))
		}
	}
	return p, nil
}

func (w *world) stopProxy(ctx context.Context) error {
	p := w.proxy
	w.proxy = nil
	return p.Stop(ctx)
}

// command runs another command of nftproxy on the node, and returns its output, whatever its exit status.
func (w *world) command(ctx context.Context, args ...string) (string, error) {
	var out strings.Builder
	cmd := exec.CommandContext(ctx, w.binary, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := w.net.Node.Run(cmd)
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.Exited() {
		err = nil
	}
	return out.String(), err
}

func (w *world) close() error {
	var errs []error
	if w.proxy != nil {
		errs = append(errs, w.proxy.Kill())
	}
	for _, p := range w.servers {
		errs = append(errs, p.Kill())
	}
	if w.plane != nil {
		w.plane.Stop()
	}
	for _, s := range append(w.peers, w.system) {
		if s != nil {
			errs = append(errs, s.stop())
		}
	}
	if w.behind != nil {
		errs = append(errs, w.behind.ns.Close())
	}
	if w.net != nil {
		errs = append(errs, w.net.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}
