package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/internal/testnet"
)

// toggles is how often the endpoints come and go.
const toggles = 200

// TestToggle takes all endpoints of a service away and brings them back, again
// and again, under a flood of new connections: whatever a packet meets, the
// endpoints, the refusal or the moment between, it never leaves the node with
// the service's address.
func TestToggle(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	web := n.create(service("web", ""))
	var slices []*discoveryv1.EndpointSlice
	for _, v6 := range []bool{false, true} {
		var addrs []netip.Addr
		for i := range 3 {
			name := fmt.Sprintf("web-%d", i+1)
			if !v6 {
				n.addServer(name)
			}
			addrs = append(addrs, of(n.Pod(name).Addrs, v6))
		}
		slices = append(slices, n.publish(slice(fmt.Sprintf("web-v6-%t", v6), web, addrs...)))
	}
	p := n.startProxy()
	p.until("three pods serve", func() error {
		return everywhere(func(protocol string, v6 bool) error {
			return n.reaches(client, protocol, address(web, protocol, v6), "web-1", "web-2", "web-3")
		})
	})

	sniffer, err := n.SniffUplink(hosts(clusterIPs(web))...)
	n.must(err)
	flood := n.flood(client, []netip.AddrPort{
		address(web, testnet.TCP, false), address(web, testnet.TCP, true),
	}, []netip.AddrPort{
		address(web, testnet.UDP, false), address(web, testnet.UDP, true),
	})
	for range toggles {
		for _, empty := range []bool{true, false} {
			n.toggle(p, slices, empty)
		}
	}
	n.must(n.reaches(client, testnet.TCP, address(web, testnet.TCP, false), "web-1", "web-2", "web-3"))
	t.Logf("during %d toggles: %s", toggles, flood.end())
	for _, o := range []testnet.Outcome{testnet.Answered, testnet.Refused} {
		if flood.outcomes[o] == 0 {
			t.Errorf("no connection was %s: the flood missed the toggles", o)
		}
	}
	packets, err := sniffer.Packets()
	n.must(err)
	if len(packets) > 0 {
		t.Errorf("%d packets left the node un-DNATed, the first %v", len(packets), packets[0])
	}

	// The sniffer would have seen them: without the proxy's tables it does.
	p.stop()
	n.must(n.nftables().DeleteTables("nftproxy"))
	flood = n.flood(client, []netip.AddrPort{address(web, testnet.TCP, true)}, []netip.AddrPort{address(web, testnet.UDP, false)})
	n.awaitLeaks(sniffer, 2)
	flood.end()
}

// toggle takes the endpoints of both slices away, or brings them back, and
// returns once the kernel has been told of each.
func (n *node) toggle(p *process, slices []*discoveryv1.EndpointSlice, empty bool) {
	n.t.Helper()
	for _, s := range slices {
		at := p.mark()
		wanted := s.DeepCopy()
		if wanted.ResourceVersion = ""; empty {
			wanted.Endpoints = []discoveryv1.Endpoint{}
		}
		_, err := n.plane.client.DiscoveryV1().EndpointSlices(n.namespace).Update(n.ctx, wanted, metav1.UpdateOptions{})
		n.must(err)
		p.await("a sync that wrote", at, func(l line) bool { return l.Msg == "synced" && l.Written != nil && *l.Written > 0 })
	}
}

// flood is connections and datagrams from new sockets, as fast as they go.
type flood struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu       sync.Mutex
	outcomes map[testnet.Outcome]int
	sent     int // datagrams
	errs     []error
}

// flood has one client for each address.
func (n *node) flood(from *testnet.Namespace, tcp, udp []netip.AddrPort) *flood {
	ctx, cancel := context.WithCancel(n.ctx)
	f := &flood{cancel: cancel, outcomes: map[testnet.Outcome]int{}}
	n.t.Cleanup(func() { f.end() })
	for _, to := range tcp {
		f.workers.Go(func() { f.connect(ctx, from, to) })
	}
	for _, to := range udp {
		f.workers.Go(func() { f.send(ctx, from, to) })
	}
	return f
}

// connect asks by TCP. That a connection meets the moment between, and waits
// for its next SYN, or is reset halfway, is none of the faults looked for.
func (f *flood) connect(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) {
	for ctx.Err() == nil {
		answer, err := from.Ask(ctx, testnet.TCP, to, answerTime)
		f.mu.Lock()
		if err == nil {
			f.outcomes[answer.Outcome]++
		} else if ctx.Err() == nil {
			f.errs = append(f.errs, err)
		}
		f.mu.Unlock()
	}
}

// send sends datagrams without waiting for answers, some from each of many sockets.
func (f *flood) send(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) {
	for ctx.Err() == nil {
		err := f.sendSome(ctx, from, to)
		f.mu.Lock()
		if err != nil && ctx.Err() == nil {
			f.errs = append(f.errs, err)
		}
		f.mu.Unlock()
	}
}

func (f *flood) sendSome(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) error {
	conn, err := from.Dial(ctx, "udp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	for range 4 {
		// An error is the refusal of an earlier one.
		if _, err := conn.Write([]byte("who?\n")); err == nil {
			f.mu.Lock()
			f.sent++
			f.mu.Unlock()
		}
	}
	return nil
}

// end stops the flood and describes it.
func (f *flood) end() string {
	f.cancel()
	f.workers.Wait()
	words := []string{fmt.Sprintf("%d datagrams sent", f.sent)}
	for outcome, count := range f.outcomes {
		words = append(words, fmt.Sprintf("%d connections %s", count, outcome))
	}
	slices.Sort(words)
	if len(f.errs) > 0 {
		words = append(words, fmt.Sprintf("%d errors, the first %v", len(f.errs), f.errs[0]))
	}
	return strings.Join(words, ", ")
}
