package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/testnet"
)

// patience is how long a test waits for an event.
const patience = time.Minute

// live is a node in network namespaces, for one family. The program of some Services is in
// force, a Cleaner follows it, pods answer datagrams, and clients send them.
type live struct {
	*testing.T
	*testnet.Topology
	family  ip.Family
	addrs   *strings.Replacer
	client  *testnet.Namespace
	cfg     ruleset.Config
	kernel  *kernel.Conn
	state   nft.State
	builder *snapshots.Builder
	table   *Table
	// heard has the names of the pods that got a datagram at silentPort.
	heard chan string

	cleaner *Cleaner
	passes  chan passed
	updates uint64 // the number of updates that the Cleaner knows of
	// bystanders are flows that no change affects.
	bystanders map[string]*conn
	ids        map[string]uint32
}

// passed is a pass, and the epoch of the index at its end.
type passed struct {
	Run
	epoch uint64
}

// Pods answer with their name at the first port, and do not answer at the second.
const (
	echoPort   = 5300
	silentPort = 8125
)

// families runs a test for each family, with a node of its own.
func families(t *testing.T, test func(l *live)) {
	for _, family := range ip.Families() {
		if testing.Short() && family == ip.V6 {
			continue
		}
		t.Run(family.Name(), func(t *testing.T) { test(newLive(t, family)) })
	}
}

func (l *live) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func newLive(t *testing.T, family ip.Family) *live {
	l := &live{
		T: t, Topology: testnet.NewForTest(t, testnet.Config{}), family: family, heard: make(chan string, 16),
		builder: snapshots.NewBuilder(service.Node{}), bystanders: map[string]*conn{}, ids: map[string]uint32{},
	}
	l.cfg = ruleset.Config{Table: ruleset.DefaultTable, Settings: service.Settings{ClusterCIDRs: l.ClusterCIDRs}}
	var err error
	l.kernel, err = kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: l.Node.Fd()}))
	l.must(err)
	t.Cleanup(func() { _ = l.kernel.Close() })
	l.table = open(t, l.Node)
	// From outside, all addresses of Services lead to the node.
	l.must(l.Outside.AddRoute(netip.MustParsePrefix(l.of("203.0.113.0/24", "2001:db8:113::/48")), l.addr(l.NodeAddrs)))
	l.must(l.Node.AddAddr(l.Uplink, netip.MustParsePrefix(l.of("192.168.100.77/24", "fd00:100::77/64"))))
	words := []string{
		"NODE", l.addr(l.NodeAddrs).String(), "SECOND", l.of("192.168.100.77", "fd00:100::77"),
		"CLUSTER", l.of("10.96.0.1", "fd00:96::1"), "OTHER", l.of("10.96.0.2", "fd00:96::2"),
		"SERVICES", l.of("10.96.0.0/16", "fd00:96::/112"),
		"EXTERNAL", l.of("203.0.113.5", "2001:db8:113::5"), "BALANCER", l.of("203.0.113.6", "2001:db8:113::6"),
		"OUTSIDE", l.addr(l.OutsideAddrs).String(), "ELSEWHERE", l.of("198.51.100.0/24", "2001:db8:51::/48"),
		"FAMILY", l.of("ip", "ip6"), "BITS", l.of("32", "128"),
	}
	for name, add := range map[string]func(string, ...netip.Addr) (*testnet.Pod, error){
		"client": l.AddPod, "one": l.AddPod, "two": l.AddPod, "remote": l.AddRemotePod,
	} {
		pod, err := add(name)
		l.must(err)
		a := l.addr(pod.Addrs)
		_, err = pod.NS.Serve(testnet.UDP, netip.AddrPortFrom(a, echoPort), name)
		l.must(err)
		l.listenSilently(pod.NS, netip.AddrPortFrom(a, silentPort), name)
		words = append(words, strings.ToUpper(name)+"-POD", netip.AddrPortFrom(a, echoPort).String(),
			strings.ToUpper(name)+"-SILENT", netip.AddrPortFrom(a, silentPort).String())
	}
	l.client = l.Pod("client").NS
	l.addrs = strings.NewReplacer(words...)
	l.startCleaner()
	return l
}

func (l *live) of(v4, v6 string) string {
	if l.family == ip.V6 {
		return v6
	}
	return v4
}

func (l *live) addr(a testnet.Addrs) netip.Addr {
	if l.family == ip.V6 {
		return a.V6()
	}
	return a.V4()
}

// listenSilently reports datagrams and answers none.
func (l *live) listenSilently(ns *testnet.Namespace, at netip.AddrPort, name string) {
	socket, err := ns.ListenPacket(l.Context(), "udp", at.String())
	l.must(err)
	l.Cleanup(func() { _ = socket.Close() })
	go func() {
		b := make([]byte, 100)
		for {
			if _, _, err := socket.ReadFrom(b); err != nil {
				return // closed
			}
			l.heard <- name
		}
	}()
}

// startCleaner starts a Cleaner as a new process does: it knows no Services yet.
func (l *live) startCleaner() (stop func()) {
	index := NewIndex(Options{Pod: l.cfg.Pod, NodePortAddresses: l.cfg.NodePortAddresses})
	passes := make(chan passed, 1)
	c := NewCleaner(open(l, l.Node), index, CleanerConfig{Observe: func(r Run) { passes <- passed{r, index.Epoch()} }})
	c.pacing = pacing{} // TestCleanerPace is about that
	c.pacing.budget.Rest = 1
	l.cleaner, l.passes, l.updates = c, passes, 0
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- c.Run(ctx)
		close(passes)
	}()
	stop = func() {
		cancel()
		for range passes { // Run may be about to report a pass.
		}
	}
	l.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			l.Error(err)
		}
	})
	return stop
}

// cluster returns the text of a cluster with the addresses in place of their words.
func (l *live) cluster(services string) string {
	return l.addrs.Replace("node node\n  address NODE\n  host-address NODE\n  host-address SECOND\n" + services)
}

// write writes the Services' program to the kernel and returns their snapshot.
func (l *live) write(services string) service.Snapshot {
	l.Helper()
	s := become(l.builder, parse(l, l.cluster(services)))
	batch, next := l.state.Plan(ruleset.Compile(l.cfg, s), time.Now())
	l.must(l.kernel.Apply(batch))
	l.state = next
	return s
}

// become writes the Services' program to the kernel, lets the Cleaner follow, and checks
// the removals: "reason: count" for each reason, separated by commas.
func (l *live) become(services, removed string) {
	l.Helper()
	l.cleaner.SyncDone(l.write(services), l.updates == 0)
	l.updates++
	l.wantRemoved(removed)
	l.unconcerned()
}

// wantRemoved waits for the pass that follows the last report to the Cleaner.
func (l *live) wantRemoved(want string) {
	l.Helper()
	removed := map[Reason]int{}
	for p := range l.passes {
		l.must(p.Err)
		for reason, n := range p.Removed {
			removed[reason] += n
		}
		if p.epoch == l.updates {
			break
		}
	}
	var words []string
	for _, reason := range slices.Sorted(maps.Keys(removed)) {
		words = append(words, fmt.Sprintf("%s: %d", reason, removed[reason]))
	}
	if diff := cmp.Diff(want, strings.Join(words, ", ")); diff != "" {
		l.Errorf("removed (-want +got):\n%s", diff)
	}
}

// conn is a client's socket. It stays the same for the whole test.
type conn struct {
	*live
	net.Conn
}

func (l *live) dial(from *testnet.Namespace, to string) *conn {
	l.Helper()
	c, err := from.Dial(l.Context(), "udp", l.addrs.Replace(to))
	l.must(err)
	l.Cleanup(func() { _ = c.Close() })
	return &conn{l, c}
}

// send sends a datagram. An error about an earlier refusal does not matter.
func (c *conn) send() {
	c.Helper()
	c.must(c.SetDeadline(time.Now().Add(patience)))
	_, err := c.Write([]byte("?"))
	if errors.Is(err, unix.ECONNREFUSED) {
		_, err = c.Write([]byte("?"))
	}
	c.must(err)
}

// ask sends a datagram and returns the name in the answer, or "refused".
func (c *conn) ask() string {
	c.Helper()
	c.send()
	b := make([]byte, 200)
	n, err := c.Read(b)
	if errors.Is(err, unix.ECONNREFUSED) {
		return "refused"
	}
	c.must(err)
	id, _, err := testnet.ParseAnswer(strings.TrimSpace(string(b[:n])))
	c.must(err)
	return id
}

func (c *conn) wantAnswer(want string) {
	c.Helper()
	if got := c.ask(); got != want {
		c.Errorf("answer from %q, want %q", got, want)
	}
}

// tell sends a datagram to a port that does not answer, and returns the name of the pod
// that got it.
func (c *conn) tell() string {
	c.Helper()
	c.send()
	select {
	case name := <-c.heard:
		return name
	case <-time.After(patience):
		c.Fatalf("nobody heard")
		return ""
	}
}

func (c *conn) wantHeard(want string) {
	c.Helper()
	if got := c.tell(); got != want {
		c.Errorf("%q heard it, want %q", got, want)
	}
}

// tuple returns the tuple of a first datagram.
func (c *conn) tuple() Tuple {
	at := func(a net.Addr) netip.AddrPort {
		p := a.(*net.UDPAddr).AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	return Tuple{at(c.LocalAddr()), at(c.RemoteAddr())}
}

// entry returns the conn's entry in the table.
func (c *conn) entry() (f Flow, found bool) {
	c.Helper()
	want := c.tuple()
	for _, f := range flows(c, c.table, Filter{Protocol: service.UDP, Dst: want.Dst.Addr(), Port: want.Dst.Port()}) {
		if f.Original == want {
			return f, true
		}
	}
	return f, false
}

func (c *conn) wantNoEntry() {
	c.Helper()
	if f, found := c.entry(); found {
		c.Errorf("entry %v", f)
	}
}

// standBy makes flows that no change of the tested Service affects: to a Service that
// stays, from pod to pod, and through another program's DNAT. One of these goes to the
// number of a node port on an address that does not serve node ports.
func (l *live) standBy() {
	l.Helper()
	loadRules(l, l.Node, l.addrs.Replace(`table FAMILY other {
	chain prerouting {
		type nat hook prerouting priority dstnat - 5; policy accept;
		FAMILY daddr SECOND udp dport { 30053, 5353 } dnat to ONE-POD
		FAMILY daddr NODE udp dport 5353 dnat to ONE-POD
	}
}`))
	for name, to := range map[string]string{
		"service": "OTHER:53", "pod": "ONE-POD", "published": "NODE:5353", "node port's number": "SECOND:30053",
	} {
		if l.family == ip.V6 {
			to = bracketed(to)
		}
		c := l.dial(l.client, to)
		c.wantAnswer("one")
		f, found := c.entry()
		if dnated := f.Status&DstNAT != 0; !found || dnated != (name != "pod") {
			l.Fatalf("%s: %v proves nothing", name, f)
		}
		l.bystanders[name], l.ids[name] = c, f.ID
	}
}

// at returns an address with a port, for dial.
func (l *live) at(word string, port int) string {
	return net.JoinHostPort(l.addrs.Replace(word), fmt.Sprint(port))
}

// bracketed returns "WORD:PORT" with brackets for an IPv6 address.
func bracketed(to string) string {
	if word, port, found := strings.Cut(to, ":"); found {
		return "[" + word + "]:" + port
	}
	return to
}

// bystander is the Service that stays.
const bystander = `
service default/other created 2026-01-01T00:00:00Z
  cluster-ip OTHER
  port dns udp 53
    endpoint ONE-POD node ready serving
`

// unconcerned checks that the bystanders still have the same entries.
func (l *live) unconcerned() {
	l.Helper()
	for name, c := range l.bystanders {
		c.wantAnswer("one")
		if f, found := c.entry(); !found || f.ID != l.ids[name] {
			l.Errorf("%s: entry %v, found %t, with ID %d before", name, f, found, l.ids[name])
		}
	}
}
