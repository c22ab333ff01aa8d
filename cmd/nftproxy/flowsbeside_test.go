package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/florianl/go-nflog/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	ti "github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	modelflows "nftproxy/model/flows"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// policyQueue is the number of the queue that a policy engine reads.
const policyQueue = 98

// Messages about queues, and verdicts (linux/netfilter/nfnetlink_queue.h, linux/netfilter.h).
const (
	queuePacket, queueVerdict, queueConfig = 0, 1, 2
	drop, accept                           = 0, 1
)

// policies is a policy engine as kube-network-policies is one: it gets the first packet of each connection of pods from
// a queue, and decides about it. It lets everything pass but what goes to one pod.
type policies struct {
	conn   *netlink.Conn
	closed testnet.Addrs
	ended  chan error

	mu   sync.Mutex
	seen []string
}

// newPolicies puts the rules of kube-network-policies behind nftproxy's in the node's namespace.
func newPolicies(w *flowsWorld, closed testnet.Addrs) *policies {
	w.Helper()
	netfilter.NeedIPTables(w)
	for _, tool := range []struct {
		name  string
		addrs netip.Prefix
	}{{"iptables-legacy", w.ClusterCIDRs[0]}, {"ip6tables-legacy", w.ClusterCIDRs[1]}} {
		path, err := aptget.Command(tool.name, "iptables")
		testnet.Require(w, err)
		for _, direction := range []string{"-s", "-d"} {
			testnet.Require(w, w.Node.Run(exec.Command(path, "-w", "-t", "mangle", "-A", "POSTROUTING", direction,
				tool.addrs.String(), "-m", "conntrack", "--ctstate", "NEW", "-j", "NFQUEUE", "--queue-num",
				fmt.Sprint(policyQueue))))
		}
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: w.Node.Fd()})
	testnet.Require(w, err)
	p := &policies{conn: conn, closed: closed, ended: make(chan error, 1)}
	const command, parameters = 1, 2
	bind := []byte{1, 0, 0, 0}        // NFQNL_CFG_CMD_BIND
	copied := []byte{0, 0, 0, 128, 2} // 128 bytes, NFQNL_COPY_PACKET
	for _, a := range []netlink.Attribute{{Type: command, Data: bind}, {Type: parameters, Data: copied}} {
		attributes, err := netlink.MarshalAttributes([]netlink.Attribute{a})
		testnet.Require(w, err)
		_, err = conn.Execute(queueMessage(queueConfig, netlink.Request|netlink.Acknowledge, attributes))
		testnet.Require(w, err)
	}
	go func() { p.ended <- p.judge() }()
	w.Cleanup(func() {
		_ = conn.Close()
		<-p.ended // by that
	})
	return p
}

func queueMessage(kind int, flags netlink.HeaderFlags, attributes []byte) netlink.Message {
	header := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, policyQueue}
	return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_QUEUE<<8 | kind),
		Flags: flags}, Data: append(header, attributes...)}
}

// judge decides about packets until the socket is closed.
func (p *policies) judge() error {
	for {
		messages, err := p.conn.Receive()
		if err != nil {
			return err
		}
		for _, m := range messages {
			if m.Header.Type != unix.NFNL_SUBSYS_QUEUE<<8|queuePacket {
				continue
			}
			if err := p.judgeOne(m.Data[4:]); err != nil {
				return err
			}
		}
	}
}

func (p *policies) judgeOne(data []byte) error {
	const packetHeader, verdictHeader, payload = 1, 2, 10
	attributes, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return err
	}
	var id []byte
	verdict := []byte{0, 0, 0, accept}
	for _, a := range attributes {
		switch a.Type {
		case packetHeader:
			id = a.Data[:4]
		case payload:
			said, dst := policyOf(a.Data)
			p.mu.Lock()
			p.seen = append(p.seen, said)
			p.mu.Unlock()
			if slices.Contains(p.closed, dst) {
				verdict[3] = drop
			}
		}
	}
	answer, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: verdictHeader, Data: append(verdict, id...)}})
	if err != nil {
		return err
	}
	_, err = p.conn.Send(queueMessage(queueVerdict, netlink.Request, answer))
	return err
}

// policyOf names what a policy is about: protocol, source, destination and port of a packet.
func policyOf(b []byte) (text string, dst netip.Addr) {
	const v4, v6 = 20, 40
	protocol, length := b[6], v6
	src := netip.AddrFrom16([16]byte(b[8:24]))
	if b[0]>>4 == 4 {
		protocol, length, src, dst = b[9], v4, netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	} else {
		dst = netip.AddrFrom16([16]byte(b[24:40]))
	}
	return fmt.Sprintf("%d from %v to %v:%d", protocol, src, dst, binary.BigEndian.Uint16(b[length+2:])), dst
}

// follower gets events of connection tracking, as conntrackd does.
type follower struct {
	conn   *conntrack.Conn
	events chan conntrack.Event
}

func newFollower(w *flowsWorld) *follower {
	w.Helper()
	conn, err := conntrack.Dial(&netlink.Config{NetNS: w.Node.Fd()})
	testnet.Require(w, err)
	f := &follower{conn, make(chan conntrack.Event, 10_000)}
	_, err = conn.Listen(f.events, 1, []ti.NetlinkGroup{ti.GroupCTNew, ti.GroupCTUpdate, ti.GroupCTDestroy})
	testnet.Require(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	return f
}

// TCP states of connection tracking between which the two ends of a connection may race (Linux, enum tcp_conntrack).
const (
	stateFinWait, stateTimeWait = 4, 7
)

// until returns what the events say of connections of the clients, until so many have ended: for each, what happened to
// it. How its end comes about, and in how many events, is left out: it differs from one connection to the next.
func (f *follower) until(ended int, clients map[netip.AddrPort]bool) map[netip.AddrPort][]string {
	said := map[netip.AddrPort][]string{}
	for e := range f.events {
		if e.Flow == nil {
			continue
		}
		from := netip.AddrPortFrom(e.Flow.TupleOrig.IP.SourceAddress, e.Flow.TupleOrig.Proto.SourcePort)
		if !clients[from] {
			continue
		}
		text := fmt.Sprintf("%v %v to %v", e.Type, e.Flow.TupleOrig.IP.DestinationAddress, e.Flow.TupleReply.IP.SourceAddress)
		if tcp := e.Flow.ProtoInfo.TCP; tcp != nil && e.Type == conntrack.EventUpdate {
			if tcp.State >= stateFinWait && tcp.State < stateTimeWait {
				continue
			}
			text += fmt.Sprintf(", state %d", tcp.State)
		}
		if !slices.Contains(said[from], text) {
			said[from] = append(said[from], text)
		}
		if e.Type == conntrack.EventDestroy {
			if ended--; ended == 0 {
				return said
			}
		}
	}
	return said
}

// TestFlowsBeside: with 1/1 a policy engine that reads a queue gets the same packets as with off, and what listens to
// events of connection tracking gets the same events; what the engine drops is dropped, and the flows say so.
func TestFlowsBeside(t *testing.T) {
	w := newFlowsWorld(t, "off")
	w.webAt = []string{"near"} // so that both runs have the same ends
	w.write()
	engine := newPolicies(w, w.addrs["blocked"])
	events := newFollower(w)
	routes := []route{
		{from: "client", service: flowsWeb, way: modelflows.ByClusterIP, only: noSCTP, want: modelflows.Answered},
		{from: "outside", service: flowsWeb, way: modelflows.ByNodePort, only: noSCTP, want: modelflows.Answered},
		{from: "client", service: flowsClosed, way: modelflows.ByClusterIP, only: testnet.UDP, want: modelflows.Refused,
			at: "near"},
		{from: "client", service: flowsResets, way: modelflows.ByClusterIP, only: onlyTCP, want: modelflows.Answered,
			at: "resets", reset: true},
	}
	blocked := route{from: "client", service: flowsBlocked, way: modelflows.ByClusterIP, only: testnet.UDP,
		want: modelflows.Dropped}
	// No rule of the node drops it now: the engine does.
	testnet.Require(t, w.Node.Run(exec.Command(w.nft.Path(), "delete", "table", "inet", "firewall")))
	type heard struct {
		Packets []string
		Events  [][]string
	}
	listen := func(share string) heard {
		r := w.run(share)
		w.attemptAll(routes)
		clients := map[netip.AddrPort]bool{}
		for _, a := range w.attempts {
			clients[a.from] = true
		}
		w.attemptAll([]route{blocked})
		if share != "off" {
			w.compare()
		}
		testnet.Require(t, w.Node.FlushConntrack())
		said := events.until(len(clients), clients)
		r.end()
		engine.mu.Lock()
		defer engine.mu.Unlock()
		h := heard{Packets: slices.Sorted(slices.Values(engine.seen))}
		engine.seen = nil
		for _, list := range said {
			slices.Sort(list)
			h.Events = append(h.Events, list)
		}
		slices.SortFunc(h.Events, slices.Compare)
		return h
	}
	before := listen("off")
	if len(before.Packets) == 0 || len(before.Events) != 12 {
		t.Errorf("with off: %+v", before)
	}
	if diff := cmp.Diff(before, listen("1/1")); diff != "" {
		t.Errorf("what neighbours hear (-off +1/1):\n%s", diff)
	}
}

// listener listens to a group of nfnetlink_log as other programs do, and notes the prefixes of the messages.
type listener struct {
	group uint16
	close func()

	mu    sync.Mutex
	heard []string
}

// listen has a listener begin.
func (w *flowsWorld) listen(group uint16) (*listener, error) {
	log, err := nflog.Open(&nflog.Config{Group: group, Copymode: nflog.CopyPacket, NetNS: w.Node.Fd()})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(w.Context())
	l := &listener{group: group, close: func() { cancel(); _ = log.Close() }}
	err = log.RegisterWithErrorFunc(ctx, func(m nflog.Attribute) int {
		l.mu.Lock()
		defer l.mu.Unlock()
		if m.Prefix != nil {
			l.heard = append(l.heard, strings.TrimRight(*m.Prefix, "\x00"))
		}
		return 0
	}, func(error) int { return 1 })
	if err != nil {
		l.close()
		return nil, err
	}
	w.Cleanup(l.close)
	return l, nil
}

// prefixes returns the prefixes of messages until one is there, each once.
func (l *listener) prefixes(ctx context.Context, until string) ([]string, error) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		l.mu.Lock()
		heard := slices.Compact(slices.Sorted(slices.Values(l.heard)))
		l.mu.Unlock()
		if slices.Contains(heard, until) {
			return heard, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return heard, fmt.Errorf("no message %q: %w", until, context.Cause(ctx))
		}
	}
}

// TestFlowsListeners: a program that logs by a group of its own hears its own packets alone. One that has nftproxy's
// group first hears nftproxy's messages: nftproxy says so, serves on, and follows connections once the other is gone.
// While nftproxy has the group no other program gets it, and what others log to it makes no flows.
func TestFlowsListeners(t *testing.T) {
	const ownGroup = 5
	w := newFlowsWorld(t, "off")
	ctx, cancel := context.WithTimeout(t.Context(), awaitLimit)
	defer cancel()
	rules := "table inet logging {\nchain through {\ntype filter hook forward priority 0\n" +
		"ct state new log prefix \"other\" group %d\n}\n}\n"
	expect := func(l *listener, until string, want ...string) {
		t.Helper()
		heard, err := l.prefixes(ctx, until)
		testnet.Require(t, err)
		if diff := cmp.Diff(want, heard); diff != "" {
			t.Errorf("what a listener to group %d hears (-want +got):\n%s", l.group, diff)
		}
	}
	group := ruleset.FlowGroup(ruleset.DefaultTable)
	first, err := w.listen(group)
	testnet.Require(t, err)
	own, err := w.listen(ownGroup)
	testnet.Require(t, err)
	testnet.Require(t, w.nft.Load(w.Node, fmt.Sprintf(rules, ownGroup)))

	r := w.runUntil("1/1", "synced", "serving", "cannot follow all connections; will try again")
	web := route{from: "client", service: flowsWeb, way: modelflows.ByClusterIP, want: modelflows.Answered}
	w.attempt(web, testnet.TCP, 0)
	expect(first, "1/1", "1/1")
	expect(own, "other", "other")
	out, errs, code := runIn(t, w.Node, "flows", "--address", defaultMetricsAddress)
	if said := fmt.Sprintf("group %d", group); code == 0 || !strings.Contains(errs, said) {
		t.Errorf("nftproxy flows: exit status %d, %q, want one that is not 0 and %q\n%s", code, errs, said, out)
	}
	first.close()
	r.await("the other's end", func(l logged) bool { return l.Msg == "following connections" })
	w.attemptAll([]route{web})
	w.compare()
	expect(own, "other", "other")

	if _, err := w.listen(group); err == nil {
		t.Errorf("two listeners have group %d", group)
	}
	testnet.Require(t, w.nft.Load(w.Node, "delete table inet logging\n"+fmt.Sprintf(rules, group)))
	w.attemptAll([]route{web})
	w.compare()
	r.end()
}

// TestFlowsUncounted: if another program switches the counters of connections off, nftproxy says so and switches them
// on again.
func TestFlowsUncounted(t *testing.T) {
	w := newFlowsWorld(t, "off")
	r := w.run("1/1")
	testnet.Require(t, w.Node.Sysctl("net.netfilter.nf_conntrack_acct", "0"))
	for _, message := range []string{"cannot follow all connections; will try again", "following connections"} {
		r.await(message, func(l logged) bool { return l.Msg == message })
	}
	w.attemptAll([]route{{from: "client", service: flowsWeb, way: modelflows.ByClusterIP, want: modelflows.Answered}})
	w.compare()
	r.end()
}
