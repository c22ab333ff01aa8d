package main

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	modelflows "nftproxy/model/flows"
	"nftproxy/model/service"
	"nftproxy/test/check/chance"
	"nftproxy/test/lib/testnet"
)

// Sets of protocols of routes.
const (
	onlyTCP   = "tcp"
	noSCTP    = "tcp udp"
	protocols = "tcp udp sctp"
)

// flowRoutes are all ways that a connection to a Service may take, with all that may come of it.
func flowRoutes() []route {
	const (
		cluster, nodePort  = modelflows.ByClusterIP, modelflows.ByNodePort
		balancer, external = modelflows.ByLoadBalancer, modelflows.ByExternalIP
		answered, refused  = modelflows.Answered, modelflows.Refused
		unanswered         = modelflows.Unanswered
		dropped            = modelflows.Dropped
	)
	var list []route
	for _, r := range []route{
		{from: "client", way: cluster}, {from: "node", way: cluster}, {from: "near", way: cluster, only: noSCTP},
		{from: "outside", way: nodePort}, {from: "outside", way: balancer}, {from: "outside", way: external},
		{from: "client", way: nodePort, only: noSCTP}, {from: "client", way: balancer, only: onlyTCP},
		{from: "client", way: external, only: onlyTCP}, {from: "node", way: nodePort, only: onlyTCP},
	} {
		r.service, r.want = flowsWeb, answered
		list = append(list, r)
	}
	return append(list,
		route{from: "client", service: flowsClosed, way: cluster, only: noSCTP, want: refused, at: "near"},
		route{from: "outside", service: flowsClosed, way: nodePort, only: noSCTP, want: refused, at: "near"},
		route{from: "node", service: flowsClosed, way: cluster, only: noSCTP, want: refused, at: "near"},
		route{from: "client", service: flowsSilent, way: cluster, want: unanswered, at: "silent", slow: true},
		route{from: "outside", service: flowsSilent, way: balancer, want: unanswered, at: "silent", slow: true},
		route{from: "client", service: flowsEmpty, way: cluster, want: refused, cause: "no-endpoints"},
		route{from: "node", service: flowsEmpty, way: cluster, want: refused, cause: "no-endpoints"},
		route{from: "outside", service: flowsEmpty, way: nodePort, want: refused, cause: "no-endpoints"},
		route{from: "outside", service: flowsEmpty, way: balancer, want: refused, cause: "no-endpoints"},
		route{from: "client", service: flowsWeb, way: cluster, port: 81, want: refused, cause: "unknown-port"},
		route{from: "outside", service: flowsLocal, way: nodePort, want: dropped, cause: "no-local-endpoints"},
		route{from: "outside", service: flowsLocal, way: external, want: dropped, cause: "no-local-endpoints"},
		route{from: "outside", service: flowsFenced, way: balancer, want: dropped, cause: "outside-source-ranges"},
		route{from: "client", service: flowsResets, way: cluster, only: onlyTCP, want: answered, at: "resets", reset: true},
		route{from: "outside", service: flowsResets, way: nodePort, only: onlyTCP, want: answered, at: "resets",
			reset: true},
		route{from: "client", service: flowsBlocked, way: cluster, want: dropped, slow: true},
	)
}

// attemptAll makes a connection of each route, protocol and family.
func (w *flowsWorld) attemptAll(routes []route) {
	w.Helper()
	var group errgroup.Group
	const atOnce = 16
	group.SetLimit(atOnce)
	for _, r := range routes {
		only := r.only
		if only == "" {
			only = protocols
		}
		for protocol := range strings.FieldsSeq(only) {
			for family := range w.NodeAddrs {
				group.Go(func() error {
					a := w.attempt(r, protocol, family)
					w.mu.Lock()
					defer w.mu.Unlock()
					w.attempts = append(w.attempts, a)
					return nil
				})
			}
		}
	}
	_ = group.Wait() // It has no errors.
}

// quick are the routes whose result is known at once.
func quick(routes []route) []route {
	return slices.DeleteFunc(slices.Clone(routes), func(r route) bool { return r.slow })
}

// flowID is what tells a connection of one process from all others of the test.
type flowID struct {
	protocol string
	from     netip.AddrPort
}

// compare waits until the process knows all about the attempts, and compares them: each is there once, and nothing
// else.
func (w *flowsWorld) compare() {
	w.Helper()
	settled := func(f *modelflows.Flow) bool {
		// Of what has been answered the numbers are known at the end.
		return f.Result != modelflows.Waiting && (f.Result != modelflows.Answered || f.Ended)
	}
	list := w.await(func(list []modelflows.Flow) bool {
		known := map[flowID]bool{}
		for i := range list {
			known[flowID{list[i].Protocol, list[i].Client}] = settled(&list[i])
		}
		return !slices.ContainsFunc(w.attempts, func(a attempt) bool { return !known[flowID{a.protocol, a.from}] })
	})
	found := map[flowID][]modelflows.Flow{}
	for _, f := range list {
		id := flowID{f.Protocol, f.Client}
		found[id] = append(found[id], f)
	}
	counts := map[string]float64{}
	for _, a := range w.attempts {
		id := flowID{a.protocol, a.from}
		if len(found[id]) != 1 {
			w.Errorf("%s: %d flows, want 1: %+v", a, len(found[id]), found[id])
		} else {
			w.compareOne(a, found[id][0])
		}
		delete(found, id)
		words := []string{string(serviceName(a.service)), string(a.want)}
		slices.Sort(words)
		counts[strings.Join(words, " ")]++
	}
	for _, f := range found {
		w.Errorf("no client has made this connection: %+v", f)
	}
	diff, tries := "", 0
	w.await(func([]modelflows.Flow) bool { // A flow is in the list just before the metrics have it.
		diff, tries = cmp.Diff(counts, w.counted()), tries+1
		return diff == "" || tries == 20
	})
	if diff != "" {
		w.Errorf("connections in the metrics (-clients +metrics):\n%s", diff)
	}
}

// compareOne compares an attempt with what the process says of it.
func (w *flowsWorld) compareOne(a attempt, f modelflows.Flow) {
	w.Helper()
	port := map[string]string{testnet.TCP: "t", testnet.UDP: "u", testnet.SCTP: "s"}[a.protocol]
	if a.cause == "unknown-port" {
		port = ""
	}
	want := modelflows.Flow{Seq: f.Seq, ID: f.ID, Begin: f.Begin, Protocol: a.protocol, Client: a.from,
		Service: serviceName(a.service), Port: port, Way: a.way, Address: a.to, Endpoint: a.endpoint(w),
		Result: a.want, Cause: a.cause, AnswerSeconds: f.AnswerSeconds, Ended: f.Ended, Seconds: f.Seconds,
		PacketsFrom: f.PacketsFrom, BytesFrom: f.BytesFrom, PacketsTo: f.PacketsTo, BytesTo: f.BytesTo, Weight: 1}
	if diff := cmp.Diff(want, f, cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y }),
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".settled" }, cmp.Ignore())); diff != "" {
		w.Errorf("%s (-client +flow):\n%s", a, diff)
	}
	if f.Begin.Before(a.began) {
		w.Errorf("%s: it began at %v, before %v", a, f.Begin, a.began)
	}
	// The kernel gives packets that the node itself sends no time.
	want.AnswerSeconds = nil
	timely := f.Endpoint.IsValid() && f.Result != modelflows.Unanswered && a.route.from != "node"
	if timed, want := f.AnswerSeconds != nil, timely; timed != want {
		w.Errorf("%s: time to the first answer is known: %v, want %v", a, timed, want)
	} else if timed && *f.AnswerSeconds < 0 {
		w.Errorf("%s: answered after %v s", a, *f.AnswerSeconds)
	}
	if a.outcome != string(testnet.Answered) {
		return
	}
	header := []uint64{20, 40}[a.family] // without options; that of UDP has 8 more
	const udpHeader, question = 8, 5     // "who?\n"
	switch a.protocol {
	case testnet.UDP:
		if f.PacketsFrom != 1 || f.BytesFrom != header+udpHeader+question || f.PacketsTo != 1 ||
			f.BytesTo != header+udpHeader+uint64(a.answer) {
			w.Errorf("%s: one packet each way, and the answer has %d bytes: %+v", a, a.answer, f)
		}
	case testnet.TCP: // SYN, ACK and FIN at least, with headers of 20 bytes
		if f.PacketsFrom < 3 || f.BytesFrom < 3*(header+20) || f.PacketsTo < 2 || f.BytesTo < 2*(header+20)+uint64(a.answer) {
			w.Errorf("%s: too few packets or bytes: %+v", a, f)
		}
	}
}

// TestFlows: with 1/1 each connection that clients have made is there once, with its endpoint, way, result and cause,
// and is in the metrics: in both families, of all protocols, through changes of endpoints, the removal of all tables by
// another program, a restart and a kill of the process.
func TestFlows(t *testing.T) {
	w := newFlowsWorld(t, "off")
	routes := flowRoutes()
	r := w.run("1/1")
	leftOut := route{from: "client", service: flowsOther, way: modelflows.ByClusterIP, want: modelflows.Answered}
	w.attempt(leftOut, testnet.TCP, 0) // No flow tells of it, since its Service asks for none.
	w.attemptAll(routes)
	w.compare()

	held := w.hold()
	w.webAt = slices.DeleteFunc(w.webAt, func(pod string) bool { return pod == held.server })
	w.write()
	r.await("a change", func(l logged) bool { return l.Msg == "synced" && l.Written > 0 })
	before := len(w.attempts)
	w.attemptAll(quick(routes))
	for _, a := range w.attempts[before:] {
		if a.service == flowsWeb && a.server == held.server {
			t.Errorf("%s: answered by an endpoint that is gone", a)
		}
	}
	w.release(held)
	w.compare()

	testnet.Require(t, w.Node.Run(exec.Command(w.nft.Path(), "flush", "ruleset")))
	w.block()
	w.awaitTable()
	w.attemptAll(quick(routes))
	w.compare()
	w.showFlows()
	r.end()

	r = w.run("1/1")
	w.attemptAll(quick(routes))
	w.compare()
	testnet.Require(t, r.cmd.Process.Kill())
	_ = r.cmd.Wait() // It was killed.
	nobody := route{from: "client", service: flowsWeb, way: modelflows.ByClusterIP, want: modelflows.Answered}
	w.attempt(nobody, testnet.TCP, 1) // The rules stay, and nobody listens.
	r = w.run("1/1")
	w.attemptAll(quick(routes))
	w.compare()
	r.end()
}

// TestFlowsAbort: a connection whose INIT an endpoint answers by an ABORT is refused. Only a kernel with SCTP sends
// one: make test-kernels PACKAGES=cmd/nftproxy.
func TestFlowsAbort(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("this kernel has no SCTP")
	}
	testnet.Require(t, err)
	testnet.Require(t, unix.Close(fd))
	w := newFlowsWorld(t, "off")
	r := w.run("1/1")
	for from, way := range map[string]modelflows.Way{"client": modelflows.ByClusterIP, "node": modelflows.ByClusterIP,
		"outside": modelflows.ByNodePort} {
		for family := range w.NodeAddrs {
			a := w.newAttempt(route{from: from, service: flowsClosed, way: way, want: modelflows.Refused, at: "near"},
				testnet.SCTP, family)
			testnet.Require(t, w.places[from].SendSCTPInit(a.from, a.to))
			w.attempts = append(w.attempts, a)
		}
	}
	w.compare()
	r.end()
}

// holding is a connection to web that stays open.
type holding struct {
	attempt
	close func()
}

// hold opens a connection to web, which stays open until release.
func (w *flowsWorld) hold() holding {
	w.Helper()
	a := attempt{route: route{from: "client", service: flowsWeb, way: modelflows.ByClusterIP, want: modelflows.Answered},
		protocol: testnet.TCP, from: netip.AddrPortFrom(w.addrs["client"][0], 9999), outcome: string(testnet.Answered)}
	a.to = a.destination(w, 0)
	conn, err := w.places["client"].DialFrom(w.Context(), "tcp", a.from.String(), a.to.String())
	testnet.Require(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	line, err := bufio.NewReader(conn).ReadString('\n')
	testnet.Require(w, err)
	a.server, _, err = testnet.ParseAnswer(line)
	testnet.Require(w, err)
	a.answer = len(line)
	return holding{a, func() { testnet.Require(w, conn.Close()) }}
}

// release checks that a held connection is open in the flows with the endpoint that it has, ends it, and has it
// compared.
func (w *flowsWorld) release(h holding) {
	w.Helper()
	open := false
	for _, f := range w.await(func(list []modelflows.Flow) bool {
		return slices.ContainsFunc(list, func(f modelflows.Flow) bool { return f.Client == h.from && f.Endpoint.IsValid() })
	}) {
		open = open || f.Client == h.from && !f.Ended && f.Endpoint == h.endpoint(w)
	}
	if !open {
		w.Errorf("%s: it is not open at %v", h, h.endpoint(w))
	}
	h.close()
	w.attempts = append(w.attempts, h.attempt)
}

// showFlows checks what the command shows of the flows.
func (w *flowsWorld) showFlows() {
	w.Helper()
	want := 0
	for _, a := range w.attempts {
		if a.service == flowsClosed && a.from.Addr() == w.addrs["client"].V4() {
			want++
		}
	}
	out, errs, code := runIn(w.T, w.Node, "flows", "closed", "--result", "refused", "--from",
		w.addrs["client"].V4().String(), "--address", defaultMetricsAddress)
	if n := strings.Count(out, "default/closed:"); code != 0 || n != want || n == 0 {
		w.Errorf("nftproxy flows shows %d flows, want %d; exit status %d: %s\n%s", n, want, code, errs, out)
	}
}

// repeat has so many clients send a packet three times to a Service without endpoints.
func (w *flowsWorld) repeat(clients int) {
	w.Helper()
	const first = 20_000
	to := route{service: flowsEmpty}.destination(w, 0)
	for i := range clients {
		from := netip.AddrPortFrom(w.addrs["client"][0], uint16(first+i))
		conn, err := w.places["client"].DialFrom(w.Context(), "udp", from.String(), to.String())
		testnet.Require(w, err)
		for range 3 {
			_, _ = conn.Write([]byte("x")) // Errors are those for the packets before.
		}
		testnet.Require(w, conn.Close())
	}
}

// serviceName is the name of a Service of a flowsWorld.
func serviceName(n int) service.Name { return service.NewName("default", flowsNames()[n]) }

// TestFlowsShare: with 1/4 on the node, and 1/16 for one Service, the flows are that share of the connections, within
// what is less likely than 10^-11 by chance, and each stands for as many. A refused client that repeats its packet has
// the same lot each time.
func TestFlowsShare(t *testing.T) {
	const each = 3000
	w := newFlowsWorld(t, "1/16")
	r := w.run("1/4")
	rates := map[int]int{flowsWeb: 4, flowsOther: 16}
	for svc := range rates {
		var group errgroup.Group
		const atOnce = 8
		group.SetLimit(atOnce)
		for i := range each {
			to := route{service: svc}.destination(w, i%len(w.NodeAddrs))
			group.Go(func() error {
				a, err := w.places["client"].Ask(w.Context(), testnet.UDP, to, awaitLimit)
				if err == nil && a.Outcome != testnet.Answered {
					err = fmt.Errorf("%v: %s", to, a.Outcome)
				}
				return err
			})
		}
		testnet.Require(t, group.Wait())
	}
	const refused = 1000 // with 1/4, their packets are as many as the rules tell of at once
	w.repeat(refused)
	// Messages come in their order: when there is one of these, all of those have been taken.
	last := route{from: "client", service: flowsEmpty, way: modelflows.ByClusterIP, want: modelflows.Refused, port: 81}
	list := w.await(func(list []modelflows.Flow) bool {
		w.attempt(last, testnet.UDP, 0)
		return slices.ContainsFunc(list, func(f modelflows.Flow) bool { return f.Cause == "unknown-port" })
	})
	n := 0
	for _, f := range list {
		if f.Cause == "no-endpoints" {
			n++
		}
	}
	if lo, hi := chance.Range(refused, 0.25); n < lo || n > hi {
		t.Errorf("%d flows of clients that are refused three times, want %d to %d", n, lo, hi)
	}
	for svc, rate := range rates {
		n := 0
		for _, f := range list {
			if f.Service != serviceName(svc) {
				continue
			}
			if n++; f.Weight != rate {
				t.Errorf("it stands for %d connections, want %d: %+v", f.Weight, rate, f)
			}
		}
		lo, hi := chance.Range(each, 1/float64(rate))
		t.Logf("%s, 1/%d: %d of %d", serviceName(svc), rate, n, each)
		if n < lo || n > hi {
			t.Errorf("%d flows, want %d to %d", n, lo, hi)
		}
	}
	r.end()
}
