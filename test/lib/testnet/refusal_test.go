package testnet_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// TestWhoRefused: a client of TCP sees the same, whether it is refused by a
// reset or by ICMP, which it may notice only after it has sent its SYN again.
func TestWhoRefused(t *testing.T) {
	const reset, unreachable, closed = 81, 82, 83
	top := testnet.NewForTest(t, testnet.Config{})
	pod := addPod(t, top.AddPod, "pod")
	ruleset(t, top.Node,
		nftables.Chain{Name: "input", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput,
			Priority: nftables.ChainPriorityFilter},
		rule(reset, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}),
		rule(unreachable, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}),
	)
	for family, pick := range map[string]func(testnet.Addrs) netip.Addr{
		"IPv4": testnet.Addrs.V4, "IPv6": testnet.Addrs.V6} {
		for _, client := range []*testnet.Namespace{pod.NS, top.Node} {
			for port, want := range map[uint16]bool{reset: true, unreachable: false, closed: true} {
				got, err := client.Ask(context.Background(), testnet.TCP, netip.AddrPortFrom(pick(top.NodeAddrs), port), enough)
				switch {
				case err != nil:
					t.Fatal(err)
				case got.Outcome != testnet.Refused || got.Reset != want || got.Attempts < 1 || want && got.Attempts > 1:
					t.Errorf("%s, %s asks port %d: %+v, want refused, by a reset: %v", family, client, port, got, want)
				}
			}
		}
	}
}

func TestEcho(t *testing.T) {
	top := testnet.NewForTest(t, testnet.Config{})
	pod, other := addPod(t, top.AddPod, "pod"), addPod(t, top.AddPod, "other")
	nobody := testnet.Addrs{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:172::1")}
	ruleset(t, top.Node,
		nftables.Chain{Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
			Priority: nftables.ChainPriorityFilter},
		[]expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(other.HostInterface),
				make([]byte, 16-len(other.HostInterface))...)},
			&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH},
		},
	)
	for _, test := range []struct {
		what string
		from *testnet.Namespace
		to   testnet.Addrs
		want testnet.Outcome
	}{
		{"the node", pod.NS, top.NodeAddrs, testnet.Answered},
		{"itself", top.Node, top.NodeAddrs, testnet.Answered},
		{"a pod behind a rule", pod.NS, other.Addrs, testnet.Refused},
		{"nobody", pod.NS, nobody, testnet.TimedOut},
	} {
		for _, pick := range []func(testnet.Addrs) netip.Addr{testnet.Addrs.V4, testnet.Addrs.V6} {
			timeout := enough
			if test.want == testnet.TimedOut {
				timeout = little
			}
			got, err := test.from.Ask(context.Background(), testnet.ICMP, netip.AddrPortFrom(pick(test.to), 0), timeout)
			if err != nil || got.Outcome != test.want {
				t.Errorf("%s pings %s, %v: %+v, %v; want %s", test.from, test.what, pick(test.to), got, err, test.want)
			}
		}
	}
}

// TestErrorsOfOthers: a client of SCTP or ICMP does not get the ICMP errors about another
// client's packets to the same address.
func TestErrorsOfOthers(t *testing.T) {
	const refused, dropped = 81, 82
	top := testnet.NewForTest(t, testnet.Config{})
	pod := addPod(t, top.AddPod, "pod")
	ruleset(t, top.Node,
		nftables.Chain{Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
			Priority: nftables.ChainPriorityFilter},
		rule(refused, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}),
		rule(dropped, &expr.Verdict{Kind: expr.VerdictDrop}),
	)
	for family, to := range map[string]string{"IPv4": "172.30.0.1", "IPv6": "fd00:172::1"} {
		t.Run(family, func(t *testing.T) {
			at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(to), port) }
			ctx, cancel := context.WithCancel(context.Background())
			waiting := make(chan error, 1)
			go func() {
				got, err := pod.NS.Ask(ctx, testnet.SCTP, at(dropped), enough)
				if err == nil {
					err = fmt.Errorf("the dropped packet was %s", got.Outcome)
				}
				waiting <- err
			}()
			// Often enough that one falls into the other's wait.
			for range 100 {
				got, err := pod.NS.Ask(context.Background(), testnet.SCTP, at(refused), enough)
				if err != nil || got.Outcome != testnet.Refused {
					t.Fatalf("the refused packet: %+v, %v", got, err)
				}
			}
			cancel()
			if err := <-waiting; !errors.Is(err, context.Canceled) && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
		})
	}
}
