package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nftproxy/bench/proxies"
	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
)

// rolled is the name of the Service.
const rolled = "rolled"

func serviceAddr() netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("10.100.0.1"), controlplane.ServicePort)
}

// rolledIP is the address of the i-th endpoint, before or after its replacement.
func rolledIP(generation, i int) netip.Addr {
	return controlplane.Address("10.244.0.20", generation*maxReplaced+i)
}

// rollingUpdate is the rolling update of a Service on a node.
type rollingUpdate struct {
	Flows
	plane   *controlplane.Plane
	node    *proxies.Node
	flows   *conntrack.Table
	clients *clients
	slice   *discoveryv1.EndpointSlice
	// closers release what the update has opened, the latest first.
	closers []func() error
}

func (u *rollingUpdate) close() error {
	var errs []error
	for i := len(u.closers) - 1; i >= 0; i-- {
		errs = append(errs, u.closers[i]())
	}
	return errors.Join(errs...)
}

// newUpdate makes a node with clients and endpoints, and the objects.
func (c Flows) newUpdate(ctx context.Context, plane *controlplane.Plane, size int) (u *rollingUpdate, err error) {
	u = &rollingUpdate{Flows: c, plane: plane}
	defer func() {
		if err != nil {
			err = errors.Join(err, u.close())
		}
	}()
	if u.node, err = proxies.NewNode(ctx, plane); err != nil {
		return nil, err
	}
	u.closers = append(u.closers, u.node.Close)
	var all []netip.Addr
	for generation := range 2 {
		for i := range c.Endpoints {
			all = append(all, rolledIP(generation, i))
		}
	}
	server, err := u.node.AddPod("server", all...)
	if err != nil {
		return nil, err
	}
	// The pod answers nothing, and nobody reads its socket: the kernel drops datagrams
	// that find no room there.
	sink, err := server.NS.ListenPacket(ctx, "udp4", fmt.Sprintf("0.0.0.0:%d", controlplane.TargetPort))
	if err != nil {
		return nil, err
	}
	u.closers = append(u.closers, sink.Close)
	pod, err := u.node.AddPod("client", clientIPs()...)
	if err != nil {
		return nil, err
	}
	for key, value := range map[string]string{
		"net.netfilter.nf_conntrack_udp_timeout": "3600", "net.netfilter.nf_conntrack_events": "1",
	} {
		if err := u.node.Node.Sysctl(key, value); err != nil {
			return nil, err
		}
	}
	if u.clients, err = newClients(pod.NS, size, serviceAddr()); err != nil {
		return nil, err
	}
	u.closers = append(u.closers, u.clients.close)
	if u.flows, err = conntrack.Open(conntrack.Config{NetNS: u.node.Node.Fd()}); err != nil {
		return nil, err
	}
	u.closers = append(u.closers, u.flows.Close)
	return u, u.create(ctx)
}

// create makes the objects as they are before the update, and replaces earlier ones.
func (u *rollingUpdate) create(ctx context.Context) error {
	s := controlplane.Service(rolled, serviceAddr().Addr())
	s.Spec.ClusterIP = serviceAddr().Addr().String()
	s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	slice := controlplane.Slice(rolled, rolled)
	slice.UID = ""
	slice.Ports[0].Protocol = ptr.To(corev1.ProtocolUDP)
	for i := range u.Endpoints {
		slice.Endpoints = append(slice.Endpoints, controlplane.Endpoint(rolledIP(0, i), nil))
	}
	services := u.plane.Client.CoreV1().Services(metav1.NamespaceDefault)
	_, err := services.Get(ctx, rolled, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx, s, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	endpointSlices := u.plane.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	if err := endpointSlices.Delete(ctx, rolled, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	u.slice, err = endpointSlices.Create(ctx, slice, metav1.CreateOptions{})
	return err
}

// replaced is an endpoint that was replaced.
type replaced struct {
	old     netip.Addr
	written time.Time
	synced  <-chan time.Time
}

// run replaces the endpoints while the flows send. Before that, it waits until each flow
// leads to one of them.
func (u *rollingUpdate) run(ctx context.Context, pid int) (f flowFigures) {
	heard, err := listen(u.node.Node)
	if err != nil {
		return flowFigures{err: err}
	}
	defer func() { f.err = errors.Join(f.err, heard.close()) }()
	if err := u.clients.all(ctx); err != nil {
		return flowFigures{err: err}
	}
	if err := u.check(ctx); err != nil {
		return flowFigures{err: err}
	}
	monitor, err := netfilter.Listen(u.node.Node.Fd())
	if err != nil {
		return flowFigures{err: err}
	}
	defer func() { f.err = errors.Join(f.err, monitor.Close()) }()
	talking, stop := context.WithCancel(ctx)
	talked := make(chan error, 1)
	const perSecond = 4000
	go func() { talked <- u.clients.talk(talking, min(perSecond, u.clients.flows)) }()
	defer func() {
		stop()
		f.err = errors.Join(f.err, <-talked)
	}()

	before, err := child.CPUTime(pid)
	if err != nil {
		return flowFigures{err: err}
	}
	list, err := u.roll(ctx, monitor)
	if err == nil {
		err = u.awaitNoStaleFlow(ctx, list)
	}
	after, cpuErr := child.CPUTime(pid)
	f.cpu = (after - before).Seconds()
	if f.err = errors.Join(err, cpuErr, heard.broken()); f.err != nil {
		return f
	}
	for _, r := range list {
		if last, count := heard.of(r.old); count > 0 {
			f.fromWrite = append(f.fromWrite, ms(last.Sub(r.written)))
			f.fromSync = append(f.fromSync, ms(last.Sub(<-r.synced)))
		}
	}
	return f
}

// check makes sure that the right flows are measured.
func (u *rollingUpdate) check(ctx context.Context) error {
	led, err := u.led(ctx)
	if err != nil {
		return err
	}
	n := 0
	for i := range u.Endpoints {
		n += led[rolledIP(0, i)]
	}
	if n != u.clients.flows {
		return fmt.Errorf("%d flows lead to the endpoints, want %d", n, u.clients.flows)
	}
	return nil
}

// led counts the flows that lead to each endpoint.
func (u *rollingUpdate) led(ctx context.Context) (map[netip.Addr]int, error) {
	counts := map[netip.Addr]int{}
	all := conntrack.Filter{Protocol: service.UDP, Dst: serviceAddr().Addr(), Port: serviceAddr().Port()}
	err := u.flows.Flows(ctx, all, func(f conntrack.Flow) error {
		counts[f.Reply.Src.Addr()]++
		return nil
	})
	return counts, err
}

// roll writes the changes.
func (u *rollingUpdate) roll(ctx context.Context, monitor *netfilter.Monitor) (list []replaced, err error) {
	ticks := time.NewTicker(u.Period)
	defer ticks.Stop()
	endpointSlices := u.plane.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	for i := range u.Endpoints {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticks.C:
		}
		u.slice.Endpoints[i] = controlplane.Endpoint(rolledIP(1, i), nil)
		r := replaced{rolledIP(0, i), time.Now(), monitor.Expect(rolledIP(1, i))}
		if u.slice, err = endpointSlices.Update(ctx, u.slice, metav1.UpdateOptions{}); err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// awaitNoStaleFlow waits until no flow leads to an endpoint that has gone. It reads the
// table rarely, since the times of the deletions come from the kernel's notices.
func (u *rollingUpdate) awaitNoStaleFlow(ctx context.Context, list []replaced) error {
	const patience, pause = 60 * time.Second, 3 * time.Second
	for end := time.Now().Add(patience); ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		led, err := u.led(ctx)
		if err != nil {
			return err
		}
		left, endpoints := 0, 0
		for _, r := range list {
			if n := led[r.old]; n > 0 {
				left, endpoints = left+n, endpoints+1
			}
		}
		switch {
		case left == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%d flows still lead to %d endpoints %v after the last change", left, endpoints, patience)
		}
	}
}
