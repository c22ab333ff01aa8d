package main

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"nftproxy/nft/kernel"
	"nftproxy/test/check/chance"
	"nftproxy/test/lib/testnet"
)

// tellFunc reports a step's progress.
type tellFunc = func(format string, args ...any)

// scenario is what the demo shows, in order.
func scenario() []step {
	return []step{
		{"Make a node, pods and clients", makeNetwork},
		{"Start nftproxy on the node", startProxy},
		{"Connections spread over the endpoints", showSpread},
		{"A service without endpoints refuses at once", showRefusal},
		{"A service without pods has its first client wait", showHold},
		{"A pod reaches itself through its service (hairpin)", showHairpin},
		{"A NodePort, from outside the cluster", showNodePort},
		{"Scale up", scaleUp},
		{"Replace every pod under traffic", replaceAll},
		{"Restart nftproxy", restartProxy},
		{"A canary: weights of 90 and 10", showWeights},
		{"A drain: weight 0", showDrain},
		{"The same client, the same endpoint: a hash", showHash},
		{"A busy pod gets fewer new connections", showLeast},
		{"The table, read back from the kernel", showTable},
		{"How long each kernel update took", showUpdates},
		{"Who talks to whom: three clients, a slow Service and one that refuses", showFlows},
	}
}

const (
	podsAtFirst  = 3
	podsScaledTo = 5
)

func makeNetwork(_ context.Context, w *world, tell tellFunc) ([]block, error) {
	tell("network namespaces")
	var err error
	if w.net, err = testnet.NewTopology(testnet.Config{}); err != nil {
		return nil, err
	}
	if w.client, err = w.net.AddPod("client"); err != nil {
		return nil, err
	}
	if err := w.addBackends(podsAtFirst); err != nil {
		return nil, err
	}
	if w.tables, err = kernel.Open(kernel.Config{NetNS: w.net.Node.Fd()}); err != nil {
		return nil, fmt.Errorf("open nftables of the node: %w", err)
	}
	if w.dir, err = os.MkdirTemp("", "nftproxy-demo-"); err != nil {
		return nil, fmt.Errorf("make a directory for manifests: %w", err)
	}
	if err := writeManifests(w.config.manifests, w.dir, state{nodeAddrs: w.net.NodeAddrs,
		endpoints: endpointsOf(w.ready)}); err != nil {
		return nil, err
	}
	return []block{text(privilege()), table{
		head: []string{"namespace", "", "addresses"},
		rows: [][]string{
			{"node", "runs nftproxy", both(w.net.NodeAddrs)},
			{names(w.ready)[0] + ".." + fmt.Sprint(podsAtFirst), "pods behind a service", both(w.ready[0].pod.Addrs) + " .."},
			{"client", "pod that connects", both(w.client.Addrs)},
			{"outside", "not in the cluster", both(w.net.OutsideAddrs)},
		},
		numbers: 3,
	}}, nil
}

// privilege says which right lets the demo make namespaces. The kernel's uid_map says
// which user outside is root here (user_namespaces(7)).
func privilege() string {
	var inside, outside, count uint32
	m, err := os.ReadFile("/proc/self/uid_map")
	if err == nil {
		_, err = fmt.Sscan(string(m), &inside, &outside, &count)
	}
	switch {
	case err != nil:
		return ""
	case count == math.MaxUint32:
		return fmt.Sprintf("as user %d, with the capabilities of root:", os.Geteuid())
	}
	return fmt.Sprintf("as user %d, who is root in a user namespace of its own:", outside)
}

func both(a testnet.Addrs) string { return fmt.Sprintf("%v  %v", a.V4(), a.V6()) }

// launch starts nftproxy, with more flags.
func (w *world) launch(more ...string) error {
	var cidrs []string
	for _, c := range w.net.ClusterCIDRs {
		cidrs = append(cidrs, c.String())
	}
	var err error
	w.proxy, err = startProcess(w.net.Node, w.config.Executable, append([]string{"run",
		"--nftproxy-manifests", w.dir,
		"--hostname-override", nodeName,
		"--cluster-cidr", strings.Join(cidrs, ","),
		"--conntrack-max-per-core", "0", // The size of the conntrack table is the same for the whole machine.
		"-v", "2"}, more...)...)
	return err
}

func startProxy(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	tell("waiting for the first program")
	start := time.Now()
	if err := w.launch(); err != nil {
		return nil, err
	}
	report, err := w.awaitWrite(ctx, start)
	if err != nil {
		return nil, err
	}
	first := update{"first program", report, start}
	w.updates = append(w.updates, first)
	if err := expectEqual(&w.checks, "services that nftproxy found in the manifests", 7, report.Services); err != nil {
		return nil, err
	}
	return []block{
		text(strings.Join(w.proxy.cmd.Args, " ")),
		textf("%d services as %d nftables objects, in the kernel %s after the process started",
			report.Services, report.Written, ms(first.total())),
		table{
			head: []string{"service", "cluster IPs", "TCP+UDP", "NodePort", "endpoints"},
			rows: [][]string{
				{"default/web", both(webAddrs()), fmt.Sprint(servicePort), fmt.Sprint(nodePort), fmt.Sprint(len(w.ready))},
				{"default/empty", both(emptyAddrs()), fmt.Sprint(servicePort), "", "0"},
				{"default/canary", canaryAddrs().V4().String(), fmt.Sprint(servicePort), "", "0, later 2"},
				{"default/cart", cartAddrs().V4().String(), fmt.Sprint(servicePort), "", fmt.Sprintf("0, later %d", cartPods)},
				{"default/jobs", jobsAddrs().V4().String(), fmt.Sprint(servicePort), "", fmt.Sprintf("0, later %d", jobsPods)},
				{"default/slow", slowAddrs().V4().String(), fmt.Sprint(servicePort), "", "0, later 1"},
				{"default/lazy", lazyAddrs().V4().String(), fmt.Sprint(servicePort), "", "0, later 1"},
			},
			numbers: 2,
		},
	}, nil
}

// way is a protocol and a family.
type way struct {
	proto string
	pick  func(testnet.Addrs) netip.Addr
	name  string
}

func ways() []way {
	return []way{
		{testnet.TCP, testnet.Addrs.V4, "TCP over IPv4"},
		{testnet.TCP, testnet.Addrs.V6, "TCP over IPv6"},
		{testnet.UDP, testnet.Addrs.V4, "UDP over IPv4"},
		{testnet.UDP, testnet.Addrs.V6, "UDP over IPv6"},
	}
}

func (y way) to(addrs testnet.Addrs, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(y.pick(addrs), port)
}

func showSpread(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	const asked = 300
	c := chart{beside: 2}
	for _, y := range ways() {
		tell("%s", y.name)
		bars, err := w.spread(ctx, y, asked)
		if err != nil {
			return nil, err
		}
		c.groups = append(c.groups, group{fmt.Sprintf("%s, %d connections", y.name, asked), bars})
	}
	return []block{c, text("Each pod saw the client pod's own address.")}, nil
}

// spread connects from the client pod to the Service n times, and counts the answers of
// each ready pod.
func (w *world) spread(ctx context.Context, y way, n int) ([]bar, error) {
	to := y.to(webAddrs(), servicePort)
	answers, err := askMany(ctx, w.client.NS, y.proto, to, n)
	if err != nil {
		return nil, err
	}
	if err := w.checkAnswers(fmt.Sprintf("%d connections from the client to %v/%s", n, to, y.proto), answers); err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, a := range answers {
		counts[a.ID]++
	}
	var bars []bar
	lo, hi := chance.Range(n, 1/float64(len(w.ready)))
	for _, b := range w.ready {
		count := counts[b.name()]
		bars = append(bars, bar{b.name(), count})
		what := fmt.Sprintf("connections by %s of %d that %s got", y.name, n, b.name())
		if err := w.expect(lo <= count && count <= hi, what, fmt.Sprintf("%d to %d", lo, hi), fmt.Sprint(count)); err != nil {
			return nil, err
		}
	}
	return bars, nil
}

// checkAnswers expects each answer to come from a ready pod that saw the client's own
// address.
func (w *world) checkAnswers(what string, answers []testnet.Answer) error {
	ready := names(w.ready)
	for _, a := range answers {
		if !slices.Contains(ready, a.ID) {
			return &mismatch{what, "answers of " + strings.Join(ready, ", "), "one of " + a.ID}
		}
		if a.Peer != a.Local {
			return &mismatch{what, fmt.Sprintf("the pod to see the client as %v", a.Local), fmt.Sprint(a.Peer)}
		}
	}
	w.held++
	return nil
}

func showRefusal(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	// TCP sends its SYN again after this time (RFC 6298). A client that is refused later
	// has waited.
	const atOnce = time.Second
	t := table{head: []string{"refused", "from", "to", "by", "after"}, numbers: 4}
	try := func(from *testnet.Namespace, y way, to netip.AddrPort, why string) error {
		tell("%s to %v", y.name, to)
		a, err := from.Ask(ctx, y.proto, to, patience)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("%s from %s to %v (%s)", y.name, from, to, why)
		if err := expectEqual(&w.checks, what, testnet.Refused, a.Outcome); err != nil {
			return err
		}
		if err := w.expect(a.Took < atOnce, what, "its refusal within "+ms(atOnce), "it after "+ms(a.Took)); err != nil {
			return err
		}
		by := "TCP reset"
		if y.proto == testnet.UDP {
			by = "ICMP"
		}
		t.rows = append(t.rows, []string{why, from.String(), fmt.Sprintf("%v/%s", to, y.proto), by, ms(a.Took)})
		return nil
	}
	for _, y := range ways() {
		if err := try(w.client.NS, y, y.to(emptyAddrs(), servicePort), "no endpoints"); err != nil {
			return nil, err
		}
	}
	v4 := ways()[0]
	if err := try(w.net.Node, v4, v4.to(emptyAddrs(), servicePort), "no endpoints"); err != nil {
		return nil, err
	}
	err := try(w.client.NS, v4, v4.to(webAddrs(), servicePort+1), "unknown port")
	return []block{t}, err
}

func showHairpin(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	self := w.ready[0]
	t := table{head: []string{"default/web", "client address that the pod saw", "its own address"}, numbers: 3}
	for _, y := range ways() {
		to := y.to(webAddrs(), servicePort)
		what := fmt.Sprintf("%s from %s to default/web until it answers itself", y.name, self.name())
		tell("%s", what)
		a, err := w.askUntil(ctx, self.pod.NS, y.proto, to, self.name(), what)
		if err != nil {
			return nil, err
		}
		if err := expectEqual(&w.checks, what+": client address that it saw", y.pick(w.net.NodeAddrs),
			a.Peer.Addr()); err != nil {
			return nil, err
		}
		t.rows = append(t.rows, []string{fmt.Sprintf("%v/%s", to, y.proto), a.Peer.Addr().String() + ", the node",
			a.Local.Addr().String()})
	}
	return []block{textf("%s connected to default/web until it was its own server:", self.name()), t}, nil
}

// askUntil connects until the given server answers.
func (w *world) askUntil(ctx context.Context, from *testnet.Namespace, proto string, to netip.AddrPort, server,
	what string) (testnet.Answer, error) {
	const tries = 200 // with 3 endpoints, one run in 10^35 never hits a given one
	for range tries {
		a, err := from.Ask(ctx, proto, to, patience)
		switch {
		case err != nil:
			return a, err
		case a.Outcome != testnet.Answered:
			return a, &mismatch{what, string(testnet.Answered), string(a.Outcome)}
		case a.ID == server:
			w.held++
			return a, nil
		}
	}
	return testnet.Answer{}, &mismatch{what, "an answer by " + server, fmt.Sprintf("%d by others", tries)}
}

func showNodePort(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	t := table{head: []string{"client", "asked the node", "answer by", "which saw the client as"}, numbers: 4}
	for _, y := range ways() {
		to := y.to(w.net.NodeAddrs, nodePort)
		what := fmt.Sprintf("%s from outside to NodePort %v", y.name, to)
		tell("%s", what)
		a, err := w.net.Outside.Ask(ctx, y.proto, to, patience)
		if err != nil {
			return nil, err
		}
		if err := expectEqual(&w.checks, what, testnet.Answered, a.Outcome); err != nil {
			return nil, err
		}
		if err := w.expect(slices.Contains(names(w.ready), a.ID), what, "an answer of "+strings.Join(names(w.ready), ", "),
			"one of "+a.ID); err != nil {
			return nil, err
		}
		if err := expectEqual(&w.checks, what+": client address that the pod saw (masqueraded)", y.pick(w.net.NodeAddrs),
			a.Peer.Addr()); err != nil {
			return nil, err
		}
		t.rows = append(t.rows, []string{a.Local.Addr().String(), fmt.Sprintf("%v/%s", to, y.proto), a.ID,
			a.Peer.Addr().String() + ", the node"})
	}
	return []block{t}, nil
}

// ms prints a duration in milliseconds, with three digits or more.
func ms(d time.Duration) string {
	n := float64(d) / float64(time.Millisecond)
	switch {
	case n >= 100:
		return fmt.Sprintf("%.0f ms", n)
	case n >= 10:
		return fmt.Sprintf("%.1f ms", n)
	}
	return fmt.Sprintf("%.2f ms", n)
}
