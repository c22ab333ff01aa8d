package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"nftproxy/test/check/chance"
	"nftproxy/test/lib/testnet"
)

// addServer makes a pod that serves TCP over IPv4, at an address given or the next free one.
func (w *world) addServer(name string, addrs ...netip.Addr) (*testnet.Pod, error) {
	pod, err := w.net.AddPod(name, addrs...)
	if err != nil {
		return nil, err
	}
	_, err = pod.NS.Serve(testnet.TCP, netip.AddrPortFrom(pod.Addrs.V4(), podPort), name)
	return pod, err
}

func endpointOf(pod *testnet.Pod) endpoint { return endpoint{Name: pod.Name, Addrs: pod.Addrs} }

// The weights of the canary: a tenth of the connections goes to v2.
const weightV1, weightV2 = 90, 10

// weigh gives the versions of default/canary their weights.
func (w *world) weigh(ctx context.Context, v1, v2 int) error {
	var s state
	for i, weight := range []int{v1, v2} {
		s.canary[i] = version{weight, []endpoint{endpointOf(w.versions[i])}}
	}
	return w.replaceManifest(ctx, fmt.Sprintf("weights %d, %d", v1, v2), canaryEndpointsFile, s)
}

func canaryTarget() netip.AddrPort { return netip.AddrPortFrom(canaryAddrs().V4(), servicePort) }

// share connects to default/canary n times. It returns the answers of each version, and
// expects v2 to have its part of them.
func (w *world) share(ctx context.Context, n, v1, v2 int) (group, error) {
	answers, err := askMany(ctx, w.client.NS, testnet.TCP, canaryTarget(), n)
	if err != nil {
		return group{}, err
	}
	counts := count(answers)
	g := group{title: fmt.Sprintf("weights %d and %d, %d connections", v1, v2, n)}
	for _, pod := range w.versions {
		g.bars = append(g.bars, bar{pod.Name, counts[pod.Name]})
	}
	lo, hi := n, n
	if v1 > 0 {
		lo, hi = chance.Range(n, float64(v2)/float64(v1+v2))
	}
	got := counts[w.versions[1].Name]
	want := fmt.Sprint(n)
	if lo < hi {
		want = fmt.Sprintf("%d to %d", lo, hi)
	}
	what := fmt.Sprintf("connections of %d that v2 got by weights of %d and %d", n, v1, v2)
	return g, w.expect(lo <= got && got <= hi, what, want, fmt.Sprint(got))
}

// count returns how many answers each server gave.
func count(answers []testnet.Answer) map[string]int {
	counts := map[string]int{}
	for _, a := range answers {
		counts[a.ID]++
	}
	return counts
}

func showWeights(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	const asked = 2000
	tell("a pod of each version")
	var err error
	for i, name := range []string{"v1", "v2"} {
		if w.versions[i], err = w.addServer(name); err != nil {
			return nil, err
		}
	}
	if err := w.weigh(ctx, weightV1, weightV2); err != nil {
		return nil, err
	}
	tell("connections")
	g, err := w.share(ctx, asked, weightV1, weightV2)
	return []block{
		chart{groups: []group{g}},
		text("default/canary has an EndpointSlice for each version, and nftproxy.io/weight on each."),
	}, err
}

func showDrain(ctx context.Context, w *world, tell tellFunc) (result []block, err error) {
	const asked = 500
	tell("a connection to v1")
	s, err := openSessionTo(ctx, w.client.NS, canaryTarget(), w.versions[0].Name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	alive := func(when string) error {
		err := s.echo()
		return w.expect(err == nil, "open connection to v1 "+when, "that it lives on", fmt.Sprint(err))
	}
	if err := alive("before the drain"); err != nil {
		return nil, err
	}
	if err := w.weigh(ctx, 0, weightV2); err != nil {
		return nil, err
	}
	if err := alive("right after the drain began"); err != nil {
		return nil, err
	}
	tell("connections")
	g, err := w.share(ctx, asked, 0, weightV2)
	if err != nil {
		return nil, err
	}
	if err := alive("after the new connections"); err != nil {
		return nil, err
	}
	return []block{
		chart{groups: []group{g}},
		textf("A connection to v1 that was open before lived through it: %d echoes.", s.echoes),
	}, nil
}

// openSessionTo opens connections until one leads to the given server, which most do.
func openSessionTo(ctx context.Context, from *testnet.Namespace, to netip.AddrPort, server string) (*session, error) {
	const tries = 50
	for range tries {
		s, err := openSession(ctx, from, to)
		if err != nil {
			return nil, fmt.Errorf("open a connection to %v: %w", to, err)
		}
		if s.server == server {
			return s, nil
		}
		if err := s.close(); err != nil {
			return nil, fmt.Errorf("close a connection to %v: %w", to, err)
		}
	}
	return nil, &mismatch{fmt.Sprintf("%d connections to %v", tries, to), "one that goes to " + server, "none"}
}

// cartPods is the number of pods of default/cart.
const cartPods = 4

// cart is the scene of showHash.
type cart struct {
	w    *world
	pods []*testnet.Pod
	// clients is a pod with an address for each client.
	clients *testnet.Pod
}

func showHash(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	const clients, lost = 200, 1
	tell("%d pods and %d clients", cartPods, clients)
	c := &cart{w: w}
	if err := c.make(clients); err != nil {
		return nil, err
	}
	name := c.pods[lost].Name
	before, err := c.change(ctx, "cart: 4 endpoints", c.pods)
	if err != nil {
		return nil, err
	}
	again, err := c.ask(ctx)
	if err != nil {
		return nil, err
	}
	if err := expectEqual(&w.checks, "clients whose second connection went elsewhere", 0,
		differ(before, again)); err != nil {
		return nil, err
	}
	tell("without %s", name)
	if err := w.net.RemovePod(name); err != nil {
		return nil, err
	}
	after, err := c.change(ctx, "cart: one is lost", slices.Delete(slices.Clone(c.pods), lost, lost+1))
	if err != nil {
		return nil, err
	}
	its, others, err := c.moved(name, before, after)
	if err != nil {
		return nil, err
	}
	tell("%s comes back", name)
	if c.pods[lost], err = w.addServer(name, c.pods[lost].Addrs...); err != nil {
		return nil, err
	}
	back, err := c.change(ctx, "cart: it is back", c.pods)
	if err != nil {
		return nil, err
	}
	if err := expectEqual(&w.checks, "clients that went elsewhere than at first when "+name+" was back", 0,
		differ(before, back)); err != nil {
		return nil, err
	}
	return []block{
		chart{beside: 2, groups: []group{c.group("clients of each endpoint", before), c.group(name+" is lost", after)}},
		textf("%d clients connected twice to default/cart (nftproxy.io/balance: client): each reached the same endpoint.",
			clients),
		textf("When %s was lost, its %d clients moved, and %d of the other %d. When it was back, all %d were where they "+
			"had been.",
			name, its, others, clients-its, clients),
	}, nil
}

// make makes the pods. The clients' addresses are 10.244.0.50 and those that follow.
func (c *cart) make(clients int) (err error) {
	for i := range cartPods {
		pod, err := c.w.addServer(fmt.Sprintf("cart-%d", i+1))
		if err != nil {
			return err
		}
		c.pods = append(c.pods, pod)
	}
	const first = 50
	addr := c.w.net.PodCIDRs[0].Addr().As4()
	var addrs []netip.Addr
	for i := range clients {
		addr[3] = byte(first + i)
		addrs = append(addrs, netip.AddrFrom4(addr))
	}
	c.clients, err = c.w.net.AddPod("clients", addrs...)
	return err
}

// change makes these pods the endpoints, and connects once from each client.
func (c *cart) change(ctx context.Context, what string, pods []*testnet.Pod) ([]testnet.Answer, error) {
	var s state
	for _, pod := range pods {
		s.cart = append(s.cart, endpointOf(pod))
	}
	if err := c.w.replaceManifest(ctx, what, cartEndpointsFile, s); err != nil {
		return nil, err
	}
	return c.ask(ctx)
}

// ask connects once from each client.
func (c *cart) ask(ctx context.Context) ([]testnet.Answer, error) {
	var sources []netip.AddrPort
	for _, addr := range c.clients.Addrs {
		sources = append(sources, netip.AddrPortFrom(addr, 0))
	}
	return askFrom(ctx, c.clients.NS, sources, testnet.TCP, netip.AddrPortFrom(cartAddrs().V4(), servicePort))
}

// moved returns how many clients the lost endpoint had, and how many of the other
// endpoints' clients moved too: a few, since Maglev's tables are not quite minimal.
func (c *cart) moved(lost string, before, after []testnet.Answer) (its, others int, err error) {
	its = count(before)[lost]
	others = differ(before, after) - its
	if err := expectEqual(&c.w.checks, "connections to "+lost+" after it was lost", 0, count(after)[lost]); err != nil {
		return its, others, err
	}
	// A new draw would move two thirds of them.
	most := (len(before) - its) / 5
	err = c.w.expect(others <= most, "clients of other endpoints that moved", fmt.Sprintf("at most %d", most),
		fmt.Sprint(others))
	return its, others, err
}

// differ counts the clients that reached another server.
func differ(a, b []testnet.Answer) (n int) {
	for i := range a {
		if a[i].ID != b[i].ID {
			n++
		}
	}
	return n
}

func (c *cart) group(title string, answers []testnet.Answer) group {
	counts := count(answers)
	g := group{title: title}
	for _, pod := range c.pods {
		g.bars = append(g.bars, bar{pod.Name, counts[pod.Name]})
	}
	return g
}
