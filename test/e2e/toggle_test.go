package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// toggles is how often the endpoints come and go.
const toggles = 200

// TestToggle removes all endpoints of a service and adds them again, many times, under a
// flood of new connections. A packet may meet the endpoints, the refusal or the moment
// between: it never leaves the node with the service's address.
func TestToggle(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	web := n.create(service("web", ""))
	var published []*discoveryv1.EndpointSlice
	for _, family := range ip.Families() {
		var addrs []netip.Addr
		for i := range 3 {
			name := fmt.Sprintf("web-%d", i+1)
			if family == ip.V4 {
				n.addServer(name)
			}
			addrs = append(addrs, of(n.Pod(name).Addrs, family))
		}
		published = append(published, n.publish(slice(fmt.Sprintf("web-%s", family), web, addrs...)))
	}
	p := n.startProxy()
	p.until("three pods serve", func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return n.reaches(client, protocol, address(web, protocol, family), "web-1", "web-2", "web-3")
		})
	})

	sniffer, err := n.SniffUplink(hosts(clusterIPs(web))...)
	n.must(err)
	flood := n.flood(client, web)
	for range toggles {
		for _, empty := range []bool{true, false} {
			n.toggle(p, published, empty)
		}
	}
	t.Logf("during %d toggles: %s", toggles, flood.end())
	p.until("three pods serve again", func() error {
		return n.reaches(client, testnet.TCP, address(web, testnet.TCP, ip.V4), "web-1", "web-2", "web-3")
	})
	for _, o := range []testnet.Outcome{testnet.Answered, testnet.Refused} {
		if flood.outcomes[o] == 0 {
			t.Errorf("no connection was %s: the flood missed the toggles", o)
		}
	}
	packets, err := sniffer.Packets()
	n.must(err)
	// The flood sends TCP and UDP. The client sends ICMP when a late reply comes for a
	// socket that it has closed. If the cleaner has removed the flow's entry by then, the
	// ICMP packet belongs to no connection, and nat never sees it.
	packets = withoutProtocol(packets, unix.IPPROTO_ICMP)
	packets = withoutProtocol(packets, unix.IPPROTO_ICMPV6)
	if len(packets) > 0 {
		t.Errorf("%d packets left the node un-DNATed, the first %v", len(packets), packets[0])
	}

	// This shows that the sniffer works: without the proxy's tables it sees packets.
	p.stop()
	n.must(n.nftables().DeleteTables("nftproxy"))
	flood = n.flood(client, web)
	n.awaitLeaks(sniffer, 4)
	flood.end()
}

func withoutProtocol(packets []testnet.Packet, protocol uint8) []testnet.Packet {
	return slices.DeleteFunc(packets, func(p testnet.Packet) bool { return p.Protocol == protocol })
}

// toggle removes the endpoints of both slices, or adds them again. It waits for the sync
// after each.
func (n *node) toggle(p *process, published []*discoveryv1.EndpointSlice, empty bool) {
	n.t.Helper()
	for _, s := range published {
		at := p.Mark()
		wanted := s.DeepCopy()
		if wanted.ResourceVersion = ""; empty {
			wanted.Endpoints = []discoveryv1.Endpoint{}
		}
		_, err := n.plane.client.DiscoveryV1().EndpointSlices(n.namespace).Update(n.ctx, wanted, metav1.UpdateOptions{})
		n.must(err)
		p.await("a sync that wrote", at, func(l line) bool { return l.Msg == "synced" && l.Written != nil && *l.Written > 0 })
	}
}

// flood is new connections and flows, as many as go.
type flood struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu       sync.Mutex
	outcomes map[testnet.Outcome]int
	sent     map[string]int // datagrams and single packets
	errs     []error
}

// flood starts one: by TCP and UDP from sockets, of both families, and by UDP in
// single packets, which come fast enough to meet the moment between two programs.
func (n *node) flood(from *testnet.Namespace, to *corev1.Service) *flood {
	n.t.Helper()
	for _, timeout := range []string{"udp_timeout", "udp_timeout_stream"} {
		// Otherwise the flood fills conntrack's table, and what comes then is dropped.
		n.must(n.Node.Sysctl("net.netfilter.nf_conntrack_"+timeout, "1"))
	}
	ctx, cancel := context.WithCancel(n.ctx)
	f := &flood{cancel: cancel, outcomes: map[testnet.Outcome]int{}, sent: map[string]int{}}
	n.t.Cleanup(func() { f.end() })
	repeat := func(once func() error) {
		f.workers.Go(func() {
			for ctx.Err() == nil {
				if err := once(); err != nil && ctx.Err() == nil {
					f.mu.Lock()
					f.errs = append(f.errs, err)
					f.mu.Unlock()
				}
			}
		})
	}
	for _, family := range ip.Families() {
		repeat(func() error { return f.connect(ctx, from, address(to, testnet.TCP, family)) })
		repeat(func() error { return f.send(ctx, from, address(to, testnet.UDP, family)) })
	}
	raw, err := from.ListenPacket(ctx, "ip4:17", n.Pod("client").Addrs.V4().String())
	n.must(err)
	n.t.Cleanup(func() { raw.Close() })
	repeat(func() error { return f.burst(raw, address(to, testnet.UDP, ip.V4)) })
	return f
}

// connect connects by TCP. A connection may meet the moment between two programs and wait
// for its next SYN, or be reset halfway. That is no failure.
func (f *flood) connect(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) error {
	answer, err := from.Ask(ctx, testnet.TCP, to, answerTime)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outcomes[answer.Outcome]++
	return nil
}

// send sends a few datagrams from a new socket, without waiting for answers.
func (f *flood) send(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) error {
	conn, err := from.Dial(ctx, "udp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	for range 4 {
		// An error is the refusal of an earlier one.
		if _, err := conn.Write([]byte("who?\n")); err == nil {
			f.count("datagrams from sockets")
		}
	}
	return nil
}

// burst sends one packet from each of many ports: UDP headers without checksum,
// which IPv4 allows.
func (f *flood) burst(raw net.PacketConn, to netip.AddrPort) error {
	target := &net.IPAddr{IP: to.Addr().AsSlice()}
	packet := make([]byte, 8)
	binary.BigEndian.PutUint16(packet[2:], to.Port())
	binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)))
	for range 1000 {
		binary.BigEndian.PutUint16(packet, uint16(1024+rand.IntN(60000)))
		if _, err := raw.WriteTo(packet, target); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent["single packets"] += 1000
	return nil
}

func (f *flood) count(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent[what]++
}

// end stops the flood and describes it.
func (f *flood) end() string {
	f.cancel()
	f.workers.Wait()
	var words []string
	for what, count := range f.sent {
		words = append(words, fmt.Sprintf("%d %s", count, what))
	}
	for outcome, count := range f.outcomes {
		words = append(words, fmt.Sprintf("%d connections %s", count, outcome))
	}
	slices.Sort(words)
	if len(f.errs) > 0 {
		words = append(words, fmt.Sprintf("%d errors, the first %v", len(f.errs), f.errs[0]))
	}
	return strings.Join(words, ", ")
}
