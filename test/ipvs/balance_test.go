package ipvs

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

// balancer is a proxy and how it chooses endpoints.
type balancer struct {
	name string
	// option is what Services ask nftproxy for; scheduler is that of kube-proxy's IPVS mode, which is the proxy if
	// this is set.
	option, scheduler string
}

func balancers() []balancer {
	return []balancer{{name: atRandom, option: "random"}, {name: ofNftproxy, option: "least-connections"},
		{name: ofIPVS, scheduler: "lc"}}
}

const (
	atRandom   = "nftproxy random"
	ofNftproxy = "nftproxy least-connections"
	ofIPVS     = "kube-proxy IPVS lc" // kube-proxy ends if there is a comma in the path of its configuration
)

func situations() []situation {
	const rate, hold = 12, 8 * time.Second
	const long = 20 * time.Second // with fewer, chance alone brings new endpoints soon near their part
	return []situation{
		{name: "20 s, one replaced", rate: rate, hold: long, replaced: 1, added: 1},
		{name: "20 s, two added", rate: rate, hold: long, added: 2},
		{name: "8 s, one takes 4 times as long", rate: rate, hold: hold, first: isBusy},
		{name: "0.2 s", rate: 2 * rate, hold: 200 * time.Millisecond},
		{name: "8 s, one refuses", rate: rate, hold: hold, first: refuses},
		{name: "8 s, one resets", rate: rate, hold: hold, first: resets},
	}
}

// outcome is what came of a situation with a balancer.
type outcome struct {
	situation
	// spread is before the rollout, share the part of the connections that fail, settled the time to spread, if settles.
	spread, share float64
	settled       time.Duration
	settles       bool
}

// TestBalance compares least connections with kube-proxy's IPVS mode with the scheduler lc, and with chance: each
// balancer gets the same connections at the same times, with one node. It logs how many connections the busiest
// endpoint has beside the mean, how long it takes after a rollout until new endpoints have their part, counted from
// their first connection, and how many connections an endpoint gets that fails. docs/evidence/least-connections.md
// has the figures.
func TestBalance(t *testing.T) {
	if f := flag.Lookup("test.run"); !strings.Contains(f.Value.String(), t.Name()) {
		t.Skip("it measures for minutes: -run " + t.Name())
	}
	p := period{steady: 60 * time.Second, rollout: 105 * time.Second, end: 150 * time.Second}
	columns := map[string][]outcome{}
	for _, b := range balancers() {
		t.Run(b.name, func(t *testing.T) { columns[b.name] = measure(t, b, p) })
	}
	t.Logf("\n%s", table(columns, p))
	random, feedback, least := columns[atRandom], columns[ofNftproxy], columns[ofIPVS]
	if random == nil || feedback == nil {
		return // its own test has failed
	}
	for i, o := range feedback {
		switch {
		case o.first == isBusy && o.spread > 0.9*random[i].spread:
			t.Errorf("%s: %.2f of the mean, at random %.2f", o, o.spread, random[i].spread)
		case o.rollout() && !o.settles:
			t.Errorf("%s: not within %v", o, p.end-p.rollout)
		case o.fails() && o.share > 2.2/endpoints: // the bound of model/share, and chance
			t.Errorf("%s: it gets %.0f %%", o, 100*o.share)
		case o.first == refuses && least != nil && least[i].share < o.share:
			t.Errorf("%s: docs/evidence/least-connections.md says that it gets more with IPVS: %.0f %%", o, 100*least[i].share)
		}
	}
}

// table is a table of Markdown.
func table(columns map[string][]outcome, p period) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
	fmt.Fprint(w, "|")
	for _, b := range balancers() {
		fmt.Fprintf(w, "\t| %s", b.name)
	}
	fmt.Fprint(w, "\t|\n|---")
	for range balancers() {
		fmt.Fprint(w, "\t|---")
	}
	fmt.Fprintln(w, "\t|")
	row := func(name string, i int, cell func(outcome) string) {
		fmt.Fprintf(w, "| %s", name)
		for _, b := range balancers() {
			text := "-"
			if columns[b.name] != nil {
				text = cell(columns[b.name][i])
			}
			fmt.Fprintf(w, "\t| %s", text)
		}
		fmt.Fprintln(w, "\t|")
	}
	for i, s := range situations() {
		if s.fails() {
			row(s.String()+": its share", i, func(o outcome) string { return fmt.Sprintf("%.0f %%", 100*o.share) })
			continue
		}
		row(s.String()+": greatest/mean", i, func(o outcome) string { return fmt.Sprintf("%.2f", o.spread) })
		if s.rollout() {
			row(s.String()+": time to spread", i, func(o outcome) string {
				if !o.settles {
					return fmt.Sprintf("more than %v", p.end-p.rollout)
				}
				return o.settled.Round(time.Second).String()
			})
		}
	}
	_ = w.Flush() // into memory
	return out.String()
}

// site is a Service in the world of a balancer.
type site struct {
	load
	slice     discoveryv1.EndpointSlice
	endpoints []*endpoint // also those that come later
	schedule  []arrival
	samples   []sample
	// found is when the last of the new endpoints had its first connection.
	found time.Duration
}

// balanced is a node with a balancer.
type balanced struct {
	*world
	pods  []*testnet.Pod
	sites []*site
}

// measure measures all situations with one balancer, at the same time.
func measure(t *testing.T, b balancer, p period) []outcome {
	w := newBalanced(t, b)
	for _, s := range w.sites {
		w.answers(s)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	start := time.Now()
	for _, s := range w.sites {
		s.schedule = s.arrivals(p.end)
		s.running.Go(func() { s.run(ctx, start, s.schedule) })
	}
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		select {
		case <-time.After(time.Until(start.Add(p.rollout))):
			w.rollOut(ctx, start)
		case <-ctx.Done():
		}
	}()
	for at := time.Second; at < p.end; at += time.Second {
		time.Sleep(time.Until(start.Add(at)))
		w.sample(time.Since(start))
	}
	stop()
	<-changed
	for _, s := range w.sites {
		s.running.Wait()
	}
	return w.outcomes(p)
}

// newBalanced makes a node with a Service for each situation, and starts the proxy.
func newBalanced(t *testing.T, b balancer) *balanced {
	w := &balanced{world: newNode(t)}
	if _, err := exec.LookPath("nftproxy"); b.scheduler == "" && err != nil {
		must(t, child.Build(filepath.Join(w.dir, "nftproxy"), filepath.Join("..", ".."), "./cmd/nftproxy"))
	}
	addr, addrs := w.PodCIDRs[0].Addr().As4(), []netip.Addr(nil)
	for i := range clients {
		addr[3] = byte(100 + i)
		addrs = append(addrs, netip.AddrFrom4(addr))
	}
	var err error
	w.client, err = w.AddPod("client", addrs...)
	must(t, err)
	for i := range endpoints + 2 {
		pod, err := w.AddPod(fmt.Sprint("endpoint-", i))
		must(t, err)
		w.pods = append(w.pods, pod)
	}
	open := startSockets(w.Context(), w.client.NS)
	for i, s := range situations() {
		w.sites = append(w.sites, w.newSite(open, s, uint8(10+i), b.option))
	}
	w.publish()
	if b.scheduler == "" {
		w.startNftproxy()
		return w
	}
	w.scheduler = b.scheduler
	w.startKubeProxy("ipvs")
	w.hasChains()
	return w
}

// newSite makes the Service of a situation, with a cluster IP that ends in number, and its endpoints.
func (w *balanced) newSite(open sockets, s situation, number uint8, option string) *site {
	name, port := fmt.Sprint("web-", number), int32(8000)+int32(number)
	cluster := netip.AddrFrom4([4]byte{10, 96, 0, number})
	made := &site{load: load{situation: s, sockets: open, sources: w.client.Addrs,
		to: netip.AddrPortFrom(cluster, 80), changing: make(chan struct{})}}
	meta := metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name),
		Labels: map[string]string{discoveryv1.LabelServiceName: name}}
	of := meta
	if option != "" {
		of.Annotations = map[string]string{"nftproxy.io/balance": option}
	}
	w.api.services = append(w.api.services, corev1.Service{TypeMeta: kind("Service", "v1"), ObjectMeta: of,
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: cluster.String(),
			ClusterIPs: []string{cluster.String()}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack), SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			Ports: []corev1.ServicePort{{Name: "t", Protocol: corev1.ProtocolTCP, Port: 80,
				TargetPort: intstr.FromInt32(port)}}}})
	made.slice = discoveryv1.EndpointSlice{TypeMeta: kind("EndpointSlice", "discovery.k8s.io/v1"), ObjectMeta: meta,
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("t"),
			Protocol: new(corev1.ProtocolTCP), Port: new(port)}}, Endpoints: w.ready(0, endpoints)}
	w.api.slices = append(w.api.slices, made.slice)
	for i, pod := range w.pods[:endpoints+s.added] {
		m := serves
		if i == 0 {
			m = s.first
		}
		e, err := startEndpoint(w.Context(), pod.NS, netip.AddrPortFrom(pod.Addrs.V4(), uint16(port)), m)
		must(w.T, err)
		w.Cleanup(e.close)
		made.endpoints = append(made.endpoints, e)
	}
	return made
}

// ready are endpoints from the first number to before the last one.
func (w *balanced) ready(first, last int) (list []discoveryv1.Endpoint) {
	for _, pod := range w.pods[first:last] {
		list = append(list, discoveryv1.Endpoint{Addresses: []string{pod.Addrs.V4().String()},
			NodeName: new(nodeName), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	return list
}

// answers waits until a Service answers.
func (w *balanced) answers(s *site) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), limit)
	defer cancel()
	for {
		try, end := context.WithTimeout(ctx, time.Second)
		f, err := s.connect(try, arrival{})
		end()
		if err == nil && f == served {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			w.Fatalf("%s: %v", s, err)
		}
	}
}

// rollOut changes the endpoints of Services. What leaves ends when the proxy sends connections to what comes.
func (w *balanced) rollOut(ctx context.Context, start time.Time) {
	for _, s := range w.sites {
		if !s.rollout() {
			continue
		}
		close(s.changing)
		s.slice.Endpoints = w.ready(s.replaced, endpoints+s.added)
		w.writeManifest("slice-"+s.slice.Name, s.slice)
		w.api.change(s.slice)
		s.running.Go(func() {
			for _, e := range s.endpoints[endpoints:] {
				select {
				case <-e.found:
				case <-ctx.Done():
					return
				}
			}
			s.mu.Lock()
			s.found = time.Since(start)
			s.mu.Unlock()
			for _, e := range s.endpoints[:s.replaced] {
				e.close()
			}
		})
	}
}

func (w *balanced) sample(at time.Duration) {
	for _, s := range w.sites {
		open := make([]int, len(s.endpoints))
		for i, e := range s.endpoints {
			open[i] = int(e.open.Load())
		}
		s.samples = append(s.samples, sample{at, open})
	}
}

// outcomes are those of the situations, after the load.
func (w *balanced) outcomes(p period) (list []outcome) {
	for _, s := range w.sites {
		for _, err := range s.errors {
			w.Error(err)
		}
		// The load is the same only if connections come when they are due.
		if s.late > 5*time.Second {
			w.Errorf("%s: a connection came %v too late: this machine is too slow for the load", s, s.late)
		}
		o := outcome{situation: s.situation, spread: spread(s.samples, p)}
		good, all := s.fates[served].Load(), int64(0)
		for i := range s.fates {
			all += s.fates[i].Load()
		}
		o.share = float64(all-good) / float64(all)
		if s.rollout() && s.found > 0 {
			o.settled, o.settles = s.settled(s.samples, s.found)
		}
		list = append(list, o)
		w.Logf("%s: %d connections, %d before the rollout, of which %d failed; the new endpoints were found at %v, and "+
			"%d tries came after servers had gone; %v too late at most", s, len(s.schedule), all, all-good,
			s.found.Round(time.Millisecond), s.again.Load(), s.late.Round(time.Millisecond))
		for chunk := range slices.Chunk(s.samples, 10) {
			w.Logf("  open at %v: %v", chunk[0].at.Round(time.Second), chunk[0].open)
		}
	}
	return list
}
