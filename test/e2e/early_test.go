package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"nftproxy/model/ip"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// TestBeforeTheFirstProgram starts flows to a service before the proxy runs.
// They reach the service once its program is in, by their own retransmissions.
func TestBeforeTheFirstProgram(t *testing.T) {
	t.Run("conntrack in use", func(t *testing.T) {
		n := newNode(t)
		// As on most nodes, conntrack has the flows as flows to an address without a
		// Service.
		n.must(netfilter.NFTForTest(t).Load(n.Node, `table inet cni {
			chain forward { type filter hook forward priority filter; ct state established accept; }
		}`))
		n.startEarly().awaitText(0, "removed stale conntrack entries")
	})
	t.Run("conntrack not in use", func(t *testing.T) {
		newNode(t).startEarly()
	})
}

// startEarly starts flows of each protocol and family, from a pod and from the
// node, then the proxy, and returns when all have come through.
func (n *node) startEarly() *process {
	n.t.Helper()
	client := n.addClient()
	web := n.create(service("web", ""))
	pod := n.addServer("web-1")
	for i, a := range pod.Addrs {
		n.publish(slice(fmt.Sprintf("web-%d", i), web, a))
	}
	shared.nftproxy(n.t) // built before the clocks of retransmission start
	sniffer, err := n.SniffUplink(hosts(clusterIPs(web))...)
	n.must(err)

	// The kernel sends a SYN again after 1, 3, 7, 15, 31 and 63 seconds.
	ctx, cancel := context.WithTimeout(n.ctx, 2*patience)
	defer cancel()
	var group sync.WaitGroup
	flows := 0
	for _, from := range []*testnet.Namespace{client, n.Node} {
		for _, family := range ip.Families() {
			start := func(flow func(context.Context, *testnet.Namespace, netip.AddrPort) error, protocol string) {
				flows++
				group.Go(func() {
					if err := flow(ctx, from, address(web, protocol, family)); err != nil {
						n.t.Error(err)
					}
				})
			}
			start(connect, testnet.TCP)
			start(sendUntilAnswered, testnet.UDP)
			start(initUntilAnswered, testnet.SCTP)
		}
	}
	n.awaitLeaks(sniffer, flows)
	p := n.startProxy()
	group.Wait()
	return p
}

// awaitLeaks waits until so many flows have left the node un-DNATed.
func (n *node) awaitLeaks(sniffer *testnet.Sniffer, want int) {
	n.t.Helper()
	end := time.Now().Add(patience)
	for {
		packets, err := sniffer.Packets()
		n.must(err)
		flows := map[testnet.Packet]bool{}
		for _, p := range packets {
			flows[p] = true
		}
		if len(flows) >= want {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("%d of %d flows left the node within %v: %v", len(flows), want, patience, flows)
		}
	}
}

// connect opens one TCP connection, with as many SYNs as it takes the kernel.
func connect(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) error {
	conn, err := from.Dial(ctx, "tcp", to.String())
	if err != nil {
		return fmt.Errorf("connect from %v: %w", from, err)
	}
	return conn.Close()
}

// pace is how often a flow of datagrams sends one.
const pace = 50 * time.Millisecond

// sendUntilAnswered sends datagrams from one socket until one is answered.
func sendUntilAnswered(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) error {
	conn, err := from.Dial(ctx, "udp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	buf := make([]byte, 256)
	for ctx.Err() == nil {
		// Until its entry is removed, nothing of it leaves the node any more,
		// of which the node's own processes are told.
		if _, err := conn.Write([]byte("who?\n")); err != nil && !errors.Is(err, syscall.EPERM) {
			return fmt.Errorf("send from %v to %v: %w", from, to, err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(pace)); err != nil {
			return err
		}
		_, err := conn.Read(buf)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return fmt.Errorf("udp from %v to %v was never answered: %w", from, to, ctx.Err())
}

// initUntilAnswered sends SCTP INITs from one port until one is answered.
func initUntilAnswered(ctx context.Context, from *testnet.Namespace, to netip.AddrPort) error {
	source := netip.AddrPortFrom(netip.IPv4Unspecified(), 50000)
	if to.Addr().Is6() {
		source = netip.AddrPortFrom(netip.IPv6Unspecified(), 50000)
	}
	for ctx.Err() == nil {
		answer, err := from.AskFrom(ctx, testnet.SCTP, source, to, pace)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if answer.Outcome == testnet.Answered {
			return nil
		}
	}
	return fmt.Errorf("sctp from %v to %v was never answered: %w", from, to, ctx.Err())
}

func hosts(addrs []netip.Addr) []netip.Prefix {
	var list []netip.Prefix
	for _, a := range addrs {
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list
}
