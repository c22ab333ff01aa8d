package conntrack

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nfnetlink"
	features "nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// A packet passes the nat hook before the rules are in, and makes its entry only after
// the first pass: a network policy engine that judges first packets in user space can
// hold it for so long. The second pass finds the entry.
func TestCleanerFindsHeldPacket(t *testing.T) {
	w := worlds(t)["IPv4"]
	loadRules(t, w.Node, w.rules())
	table, made, queue := open(t, w.Node), listen(t, w.Node), hold(t, w.Node)

	late := w.send(t, service.UDP, 41001, w.clusterIP, 80)
	id := queue.next(t)
	loadRules(t, w.Node, fmt.Sprintf("add rule ip other prerouting ip daddr %v udp dport 80 dnat to %v", w.clusterIP,
		w.outside))

	ctx, stop := context.WithCancel(t.Context())
	runs, done := make(chan Run, 3), make(chan error)
	c := NewCleaner(table, NewIndex(Options{}), CleanerConfig{Observe: func(r Run) { runs <- r }})
	go func() { done <- c.Run(ctx) }()
	c.SyncDone(w.snapshot(t), true)
	if run := <-runs; run.Err != nil || len(run.Removed) > 0 {
		t.Errorf("first pass: %+v, want nothing found", run)
	}
	queue.release(t, id)
	made.await(t, late)
	if run := <-runs; run.Err != nil || run.Removed[ServiceAddress] != 1 {
		t.Errorf("second pass: %+v, want the late entry removed", run)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// queue is a kernel queue of packets that wait for a verdict.
type queue struct {
	conn *netlink.Conn
}

// Messages and attributes of nfnetlink_queue (Linux, nfnetlink_queue.h).
const (
	queueVerdict = 1
	queueConfig  = 2

	configCommand = 1
	configParams  = 2
	packetHeader  = 1
	verdictHeader = 2

	queueNumber = 7
)

// hold puts every forwarded IPv4 packet into the queue. Its rule is the one of
// iptables-nft, since not all kernels have the queue statement of nftables.
func hold(t *testing.T, ns *testnet.Namespace) *queue {
	t.Helper()
	features.NeedIPTables(t)
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	q := &queue{conn}
	q.request(t, queueConfig, netfilter.Attribute{Type: configCommand, Data: []byte{1, 0, 0, unix.AF_INET}}) // bind
	// metadata only
	q.request(t, queueConfig, netfilter.Attribute{Type: configParams, Data: []byte{0, 0, 0, 0, 1}})

	nft, err := nftables.New(nftables.WithNetNSFd(ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	policies := nft.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "policies"})
	forward := nft.AddChain(&nftables.Chain{
		Table: policies, Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	number := xt.Unknown(binary.NativeEndian.AppendUint16(nil, queueNumber))
	nft.AddRule(&nftables.Rule{Table: policies, Chain: forward,
		Exprs: []expr.Any{&expr.Target{Name: "NFQUEUE", Info: &number}}})
	if err := nft.Flush(); err != nil {
		t.Fatal(err)
	}
	return q
}

func (q *queue) request(t *testing.T, kind netfilter.MessageType, attrs ...netfilter.Attribute) {
	t.Helper()
	m, err := netfilter.MarshalNetlink(netfilter.Header{
		SubsystemID: netfilter.NFSubsysQueue, MessageType: kind, ResourceID: queueNumber,
		Flags: netlink.Request | netlink.Acknowledge,
	}, attrs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.conn.Execute(m); err != nil {
		t.Fatal(err)
	}
}

// next waits for a packet and returns its ID.
func (q *queue) next(t *testing.T) uint32 {
	t.Helper()
	messages, err := q.conn.Receive()
	if err != nil {
		t.Fatal(err)
	}
	header := nfnetlink.Message{Body: messages[0].Data}.Attributes().Get(packetHeader)
	if len(header) < 4 {
		t.Fatal("queued packet without header")
	}
	return binary.BigEndian.Uint32(header)
}

// release accepts a packet.
func (q *queue) release(t *testing.T, id uint32) {
	t.Helper()
	const accept = 1
	verdict := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, accept), id)
	q.request(t, queueVerdict, netfilter.Attribute{Type: verdictHeader, Data: verdict})
}
