package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/nft/kernel"
	"nftproxy/test/cmd/soak/script"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// failure is a promise that the proxy broke, in contrast to an error of the run itself.
type failure struct{ what string }

func (f *failure) Error() string { return f.what }

func failed(format string, args ...any) error { return &failure{fmt.Sprintf(format, args...)} }

// world is everything that a run is about: a node, its pods and clients, the control
// plane and the proxy. Its methods are for the goroutine of the events.
type world struct {
	*testnet.Topology
	ctx    context.Context
	opts   options
	choice script.Event // the event World
	plane  *controlplane.Plane
	apiUp  bool
	// blind says that the proxy started while the API server was away, which has not come
	// back since.
	blind bool
	conn  *kernel.Conn // of the run, for looks and for damage
	nft   netfilter.NFT
	proxy *child.Process // nil while none runs
	// before is the process before proxy, for its log.
	before  *child.Process
	objects objects
	// kept are the objects of the last backup; nil before.
	kept *objects
	// unsettled are the objects that the proxy may have: those that the tables were last seen
	// to have, and all since.
	unsettled []objects
	// others are the tables of other programs, by name, as they were listed.
	others map[string]string
	// repairs undo the cut of a pod; none while all pods answer. repaired is when the last one was repaired.
	repairs  []func() error
	repaired time.Time
	book     *Book
	traffic  *traffic
	count    *counts
	servers  []io.Closer
	out      io.Writer // for the progress
}

const (
	nodeName = "node"
	// namespace is that of the Services, and crowd that of more of them, which no client asks.
	namespace = "soak"
	crowd     = "crowd"
	// udpTimeout is the life of a UDP entry without packets.
	udpTimeout = time.Minute
	// patience bounds every wait for something that must come, on whatever machine.
	patience = 3 * time.Minute
)

// newWorld makes everything but the traffic and the proxy.
func newWorld(ctx context.Context, o options, choice script.Event, count *counts, out io.Writer) (w *world, err error) {
	w = &world{ctx: ctx, opts: o, choice: choice, apiUp: true, book: NewBook(), count: count,
		objects: newObjects(), others: map[string]string{}, out: out}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
			w = nil
		}
	}()
	if w.nft, err = netfilter.FindNFT(); err != nil {
		return w, err
	}
	if w.Topology, err = testnet.NewTopology(testnet.Config{}); err != nil {
		return w, err
	}
	if err = w.addPods(); err != nil {
		return w, err
	}
	// Otherwise the traffic would fill the table: each new connection has an entry.
	for key, value := range map[string]string{"tcp_timeout_time_wait": "10",
		"udp_timeout": fmt.Sprint(udpTimeout.Seconds())} {
		if err = w.Node.Sysctl("net.netfilter.nf_conntrack_"+key, value); err != nil {
			return w, err
		}
	}
	if w.conn, err = kernel.Open(kernel.Config{NetNS: w.Node.Fd()}); err != nil {
		return w, err
	}
	w.plane, err = controlplane.StartInNamespace(ctx, controlplane.Config{
		ListenAddr: netip.MustParseAddr("172.30.0.1"), Controllers: []string{"service-cidr-controller"}, Log: io.Discard,
	})
	if err != nil {
		return w, err
	}
	if err = w.plane.Connect(w.Node); err != nil {
		return w, err
	}
	if err = w.register(); err != nil {
		return w, err
	}
	if choice.Get("owned") == "no" {
		// A table that was made without an owner never gets one.
		err = w.nft.Load(w.Node, plainTables())
	}
	return w, err
}

// addPods makes the pods that serve, and two that are clients.
func (w *world) addPods() error {
	for _, name := range append(script.Pods(), "client", "sticky") {
		add := w.AddPod
		if !onNode(name) {
			add = w.AddRemotePod
		}
		pod, err := add(name)
		if err != nil {
			return err
		}
		if name == "client" || name == "sticky" {
			continue
		}
		for _, a := range pod.Addrs {
			for _, port := range targetPorts() {
				id := podID(name, port)
				if _, err := pod.NS.Serve(testnet.TCP, netip.AddrPortFrom(a, port), id); err != nil {
					return err
				}
				server, err := serveUDP(w.ctx, pod.NS, netip.AddrPortFrom(a, port), id)
				if err != nil {
					return err
				}
				w.servers = append(w.servers, server)
			}
		}
	}
	return nil
}

// onNode says whether a pod is on the node of the proxy.
func onNode(pod string) bool { return pod != "x" && pod != "y" }

// register makes the Node object and the namespace.
func (w *world) register() error {
	core := w.plane.Client.CoreV1()
	node, err := core.Nodes().Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}},
		metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for _, a := range w.NodeAddrs {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP,
			Address: a.String()})
	}
	if _, err := core.Nodes().UpdateStatus(w.ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}
	for _, name := range []string{namespace, crowd} {
		_, err := core.Namespaces().Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// proxyArgs are the proxy's flags.
func (w *world) proxyArgs() []string {
	args := []string{
		// What a restored API server lacks goes at once, as the script says.
		"run", "--nftproxy-retain-missing=0", "--hostname-override=" + nodeName, "--kubeconfig=" +
			w.plane.Cluster.AdminKubeconfig(), "-v=2",
		"--healthz-bind-address=", "--metrics-bind-address=", "--conntrack-max-per-core=0",
		"--nftproxy-counters=" + w.choice.Get("counters"),
		"--masquerade-all=" + fmt.Sprint(w.choice.Get("masquerade-all") == "yes"),
	}
	if w.choice.Get("eject") == "yes" {
		args = append(args, "--nftproxy-eject=on")
	}
	if w.choice.Get("clean-established") == "yes" {
		args = append(args, "--nftproxy-conntrack-clean-established=tcp")
	}
	if addresses := w.choice.Get("node-ports"); addresses != "primary" && addresses != "" {
		args = append(args, "--nodeport-addresses="+addresses)
	}
	if w.choice.Get("local") == "InterfaceNamePrefix" {
		return append(args, "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth")
	}
	return append(args, fmt.Sprintf("--cluster-cidr=%s,%s", w.ClusterCIDRs[0], w.ClusterCIDRs[1]))
}

// start starts a proxy, unless one runs. It does not wait for its first sync.
func (w *world) start(binary string) error {
	if w.proxy != nil {
		return nil
	}
	p, err := child.Start(w.Node, exec.Command(binary, knownTo(binary, w.proxyArgs())...))
	if err != nil {
		return err
	}
	w.before, w.proxy = w.proxy, p
	w.blind = !w.apiUp
	return nil
}

// alive returns a failure if the proxy has ended by itself.
func (w *world) alive() error {
	if w.proxy != nil && w.proxy.Ended() {
		return failed("nftproxy ended by itself: %v", w.proxy.Err())
	}
	return nil
}

// end ends the proxy, if one runs, by a signal.
func (w *world) end(gently bool) error {
	if w.proxy == nil {
		return nil
	}
	p := w.proxy
	if err := w.alive(); err != nil {
		return err
	}
	w.before, w.proxy = p, nil
	defer w.book.ProcessEnded()
	if !gently {
		return p.Kill()
	}
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	err := p.Stop(ctx)
	if err != nil && p.Mark() == 0 {
		w.count.add("processes ended before they had begun")
		return nil
	}
	if err != nil {
		return failed("nftproxy did not end well after SIGTERM: %v", err)
	}
	return nil
}

// log is the end of the proxy's log, and that of the process before.
func (w *world) log() string {
	var b strings.Builder
	for _, p := range []*child.Process{w.before, w.proxy} {
		if p != nil {
			fmt.Fprintf(&b, "--- %s, process %d\n%s", filepath.Base(w.opts.nftproxy), p.PID(), p.Tail(400))
		}
	}
	return b.String()
}

// close ends and removes everything.
func (w *world) close() error {
	var errs []error
	if w.traffic != nil {
		w.traffic.stop()
	}
	if w.proxy != nil {
		errs = append(errs, w.proxy.Kill())
	}
	for _, s := range w.servers {
		errs = append(errs, s.Close())
	}
	if w.conn != nil {
		errs = append(errs, w.conn.Close())
	}
	if w.plane != nil {
		errs = append(errs, w.plane.Stop())
	}
	if w.Topology != nil {
		errs = append(errs, w.Topology.Close())
	}
	return errors.Join(errs...)
}

// targetPorts are the ports of each pod. Services use the one or the other.
func targetPorts() []uint16 { return []uint16{8080, 8081} }

func podID(pod string, port uint16) string { return fmt.Sprintf("%s/%d", pod, port) }

// objects are those that the run has made, as the API server holds them.
type objects struct {
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	// all is everything that the proxy reads, as a manifest.
	all []byte
}

// clone is a copy that later changes leave as it is.
func (o objects) clone() objects {
	o.services, o.slices = maps.Clone(o.services), maps.Clone(o.slices)
	return o
}

func newObjects() objects {
	return objects{services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{}}
}
