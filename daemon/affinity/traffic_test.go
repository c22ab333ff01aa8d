package affinity_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"nftproxy/daemon/affinity"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/testnet"
)

const (
	port, nodePort, targetPort = 80, 30080, 8080
	// enough is a time-out that no answer reaches.
	enough = time.Minute
)

// rig is a node with pods and the rules of one Service.
type rig struct {
	*testnet.Topology
	t        *testing.T
	conn     *kernel.Conn
	compiler *ruleset.Compiler
	timeout  time.Duration
	// state and program are in force.
	state   nft.State
	program *nft.Program
	sweeper *affinity.Sweeper
	runs    chan affinity.Run
}

// newRig has a pod for each endpoint, which answers with its name, a client pod, and
// a running sweeper.
func newRig(t *testing.T, timeout time.Duration, endpoints ...string) *rig {
	t.Helper()
	r := &rig{Topology: testnet.NewForTest(t, testnet.Config{}), t: t, timeout: timeout,
		runs: make(chan affinity.Run, 100)}
	for _, name := range append([]string{"client"}, endpoints...) {
		pod, err := r.AddPod(name)
		r.must(err)
		for _, a := range pod.Addrs {
			for _, proto := range protocols() {
				_, err := pod.NS.Serve(proto, netip.AddrPortFrom(a, targetPort), name)
				r.must(err)
			}
		}
	}
	var err error
	r.conn, err = kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: r.Node.Fd()}))
	r.must(err)
	r.compiler = ruleset.NewCompiler(ruleset.Config{
		Table: ruleset.DefaultTable, Settings: service.Settings{
			ClusterCIDRs: r.ClusterCIDRs,
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	r.sweeper = affinity.NewSweeper(r.conn, busy(), func(run affinity.Run) {
		select {
		case r.runs <- run:
		case <-ctx.Done():
		}
	})
	done := make(chan error)
	go func() { done <- r.sweeper.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		r.must(<-done)
		r.must(r.conn.Close())
	})
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func protocols() []string { return []string{testnet.TCP, testnet.UDP} }

// sync puts the Service with these endpoints in force and tells the sweeper.
func (r *rig) sync(endpoints ...string) {
	r.t.Helper()
	var ports []service.Port
	for _, proto := range []service.Protocol{service.TCP, service.UDP} {
		p := service.Port{Name: fmt.Sprint("port-", proto), Protocol: proto, Port: port, NodePort: nodePort}
		var list []service.Endpoint
		for _, name := range endpoints {
			for _, a := range r.Pod(name).Addrs {
				list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(a, targetPort), Ready: true, Serving: true})
			}
		}
		p.Endpoints = service.MergeEndpoints(list)
		ports = append(ports, p)
	}
	b := snapshots.NewBuilder(service.Node{Name: "node", Addresses: r.NodeAddrs})
	b.Set(&service.Service{
		Name: "default/web", ClusterIPs: clusterIPs(), AffinityTimeout: r.timeout, Ports: ports,
	})
	program := r.compiler.Compile(b.Snapshot())
	batch, next := r.state.Plan(program, time.Now())
	r.must(r.conn.Apply(batch))
	r.sweeper.Notify(program, r.program == nil)
	r.state, r.program = next, program
}

func clusterIPs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}
}

// way is a client and the address by which it asks the Service.
type way struct {
	from  *testnet.Namespace
	proto string
	to    netip.AddrPort
}

func (w way) String() string { return fmt.Sprintf("%s, %s %s", w.from, w.proto, w.to) }

// ways lead from a pod to the Service's address, and from a pod and from outside to
// the node port, in each family and by each protocol. A client is remembered once for
// each family and protocol.
func (r *rig) ways() []way {
	var all []way
	for _, proto := range protocols() {
		for i, clusterIP := range clusterIPs() {
			all = append(all,
				way{r.Pod("client").NS, proto, netip.AddrPortFrom(clusterIP, port)},
				way{r.Pod("client").NS, proto, netip.AddrPortFrom(r.NodeAddrs[i], nodePort)},
				way{r.Outside, proto, netip.AddrPortFrom(r.NodeAddrs[i], nodePort)},
			)
		}
	}
	return all
}

// remembers is the way without the address, of which only the family counts: equal
// ways are one remembered client.
func remembers(w way) way {
	unspecified := netip.IPv4Unspecified()
	if w.to.Addr().Is6() {
		unspecified = netip.IPv6Unspecified()
	}
	w.to = netip.AddrPortFrom(unspecified, 0)
	return w
}

// clients is the number of remembered clients after a connection in each of the ways.
func clients(ways []way) int {
	all := map[way]bool{}
	for _, w := range ways {
		all[remembers(w)] = true
	}
	return len(all)
}

// ask asks in each way and returns the name of the pod that answered.
func (r *rig) ask(ways []way) map[way]string {
	r.t.Helper()
	ids := map[way]string{}
	for _, w := range ways {
		a, err := w.from.Ask(r.t.Context(), w.proto, w.to, enough)
		r.must(err)
		if a.Outcome != testnet.Answered {
			r.t.Fatalf("%v: %s", w, a.Outcome)
		}
		ids[w] = a.ID
	}
	return ids
}

// stays checks that each way leads to its endpoint again and again.
func (r *rig) stays(when string, with map[way]string) {
	r.t.Helper()
	for range 10 {
		for w, id := range with {
			if again := r.ask([]way{w})[w]; again != id {
				r.t.Fatalf("%s: %v leads to %s, and then to %s", when, w, id, again)
			}
		}
	}
}

// remembered are the clients in all maps.
func (r *rig) remembered() []kernel.Entry {
	r.t.Helper()
	var all []kernel.Entry
	for _, m := range ruleset.AffinityMaps(r.program) {
		entries, err := r.conn.Learned(m.Table, m.Set)
		r.must(err)
		all = append(all, entries...)
	}
	return all
}

// awaitSwept waits until n clients have been swept.
func (r *rig) awaitSwept(n int) {
	r.t.Helper()
	for n > 0 {
		select {
		case run := <-r.runs:
			r.must(run.Err)
			n -= run.Swept
		case <-time.After(time.Minute):
			r.t.Fatalf("%d clients are not swept", n)
		}
	}
}

// TestClientsOfAnEndpointThatHasGone: after the sweep, the clients of an endpoint that
// has gone are sent to another one, and stay there.
func TestClientsOfAnEndpointThatHasGone(t *testing.T) {
	r := newRig(t, time.Hour, "one", "two", "three")
	ways := r.ways()
	r.sync("one")
	chosen := r.ask(ways) // there is only one
	r.sync("one", "two", "three")
	r.stays("with more endpoints", chosen)
	if n := len(r.remembered()); n != clients(ways) {
		t.Fatalf("%d clients are remembered, want %d", n, clients(ways))
	}

	r.must(r.RemovePod("one"))
	r.sync("two", "three")
	r.awaitSwept(clients(ways))
	if left := r.remembered(); len(left) > 0 {
		t.Errorf("still remembered: %+v", left)
	}
	again := r.ask(ways)
	by := map[way]string{}
	for w, id := range again {
		if other, asked := by[remembers(w)]; asked && other != id {
			t.Errorf("%v leads to %s, where another address led to %s", w, id, other)
		}
		by[remembers(w)] = id
	}
	for w, id := range again {
		if id == chosen[w] {
			t.Errorf("%v leads to %s, which has gone", w, id)
		}
	}
	r.stays("with the other endpoints", again)
	if n := len(r.remembered()); n != clients(ways) {
		t.Errorf("%d clients are remembered, want %d", n, clients(ways))
	}
}

// TestTimeoutIsOver: the kernel forgets a client when its time is over. The client may
// then be sent to another endpoint.
func TestTimeoutIsOver(t *testing.T) {
	r := newRig(t, time.Second, "one", "two", "three")
	ways := r.ways()
	r.sync("one", "two", "three")
	first := r.ask(ways)
	moved := map[way]bool{}
	for round := 1; len(moved) < len(ways); round++ {
		if round > 50 { // the chance is 12 * (1/3)^50
			t.Fatalf("clients of only %d of %d ways have been sent elsewhere", len(moved), len(ways))
		}
		for len(r.remembered()) > 0 {
			// Only the kernel's clock removes clients.
			select {
			case run := <-r.runs:
				if run.Err != nil || run.Swept > 0 {
					t.Fatalf("sweep: %+v", run)
				}
			case <-time.After(10 * time.Millisecond): // until the next look
			}
		}
		for w, id := range r.ask(ways) {
			if id != first[w] {
				moved[w] = true
			}
		}
	}
}

// TestTimeoutStartsAnew: each new connection of a remembered client starts its time
// again, and leads to the same endpoint.
func TestTimeoutStartsAnew(t *testing.T) {
	r := newRig(t, time.Hour, "one", "two", "three")
	ways := r.ways()
	r.sync("one", "two", "three")
	chosen := r.ask(ways)
	// The client with the most time left has to age by this.
	const age = 500 * time.Millisecond
	most := func(entries []kernel.Entry) time.Duration {
		return slices.MaxFunc(entries, func(a, b kernel.Entry) int { return int(a.Expires - b.Expires) }).Expires
	}
	least := func(entries []kernel.Entry) time.Duration {
		return slices.MinFunc(entries, func(a, b kernel.Entry) int { return int(a.Expires - b.Expires) }).Expires
	}
	var old []kernel.Entry
	var at time.Time
	for {
		at = time.Now()
		if old = r.remembered(); len(old) != clients(ways) {
			t.Fatalf("%d clients are remembered, want %d", len(old), clients(ways))
		}
		if most(old) <= r.timeout-age {
			break
		}
		time.Sleep(10 * time.Millisecond) // until the next look
	}
	r.stays("before the time is over", chosen)
	fresh := r.remembered()
	// Without a new start at most notRefreshed would be left. A new start adds the age
	// at least, however long the connections took.
	notRefreshed := most(old) - time.Since(at)
	if len(fresh) != clients(ways) || least(fresh) < notRefreshed+age/2 {
		t.Errorf("%d clients, one with %v left; without a new start %v would be left", len(fresh), least(fresh), notRefreshed)
	}
}

// busy is the CPU time of a process that works all the time.
func busy() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}
