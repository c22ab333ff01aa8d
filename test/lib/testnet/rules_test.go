package testnet_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// ruleset loads one chain of an inet table into a namespace.
func ruleset(t *testing.T, ns *testnet.Namespace, chain nftables.Chain, rules ...[]expr.Any) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	chain.Table = conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "test"})
	conn.AddChain(&chain)
	for _, rule := range rules {
		conn.AddRule(&nftables.Rule{Table: chain.Table, Chain: &chain, Exprs: rule})
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// rule is `th dport PORT` and then what is given.
func rule(port uint16, then ...expr.Any) []expr.Any {
	return append([]expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
	}, then...)
}

// TestOwnRules asks through rules of the asking namespace itself, where the
// kernel answers EPERM to both drop and reject.
func TestOwnRules(t *testing.T) {
	const rejected, dropped = 81, 82
	top := testnet.NewForTest(t, testnet.Config{})
	pod := addPod(t, top.AddPod, "pod")
	ruleset(t, top.Node,
		nftables.Chain{Name: "output", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput,
			Priority: nftables.ChainPriorityFilter},
		rule(rejected, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}),
		rule(dropped, &expr.Verdict{Kind: expr.VerdictDrop}),
	)
	everyProtocol(t, func(t *testing.T, proto string, pick func(testnet.Addrs) netip.Addr) {
		for _, test := range []struct {
			port uint16
			want testnet.Outcome
		}{{rejected, testnet.Refused}, {dropped, testnet.TimedOut}} {
			timeout := enough
			if test.want == testnet.TimedOut {
				timeout = little
			}
			got, err := top.Node.Ask(context.Background(), proto, netip.AddrPortFrom(pick(pod.Addrs), test.port), timeout)
			if err != nil || got.Outcome != test.want {
				t.Errorf("port %d: %v, %v, want %s", test.port, got, err, test.want)
			}
		}
	})
}

// TestDNATAndMasquerade asks a service address that the node translates. The
// kernel tracks only SCTP packets that are right, checksum included.
func TestDNATAndMasquerade(t *testing.T) {
	const servicePort, podPort = 80, 8080
	for name, config := range configs() {
		t.Run(name, func(t *testing.T) {
			top := testnet.NewForTest(t, config)
			client, far := addPod(t, top.AddPod, "client"), addPod(t, top.AddRemotePod, "far")
			services := testnet.Addrs{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:172::1")}
			sniffer := sniff(t, top, "172.30.0.1/32", "fd00:172::1/128")

			conn, err := nftables.New(nftables.WithNetNSFd(top.Node.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			for family, pick := range map[nftables.TableFamily]func(testnet.Addrs) netip.Addr{
				nftables.TableFamilyIPv4: testnet.Addrs.V4, nftables.TableFamilyIPv6: testnet.Addrs.V6,
			} {
				table := conn.AddTable(&nftables.Table{Family: family, Name: "test"})
				pre := conn.AddChain(&nftables.Chain{Table: table, Name: "prerouting", Type: nftables.ChainTypeNAT,
					Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
				post := conn.AddChain(&nftables.Chain{Table: table, Name: "postrouting", Type: nftables.ChainTypeNAT,
					Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
				conn.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: rule(servicePort,
					&expr.Immediate{Register: 1, Data: pick(far.Addrs).AsSlice()},
					&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, podPort)},
					&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1, RegProtoMin: 2},
				)})
				conn.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: rule(podPort, &expr.Masq{})})
			}
			if err := conn.Flush(); err != nil {
				t.Fatal(err)
			}

			everyProtocol(t, func(t *testing.T, proto string, pick func(testnet.Addrs) netip.Addr) {
				serve(t, far.NS, proto, netip.AddrPortFrom(pick(far.Addrs), podPort), "far")
				got, err := client.NS.Ask(context.Background(), proto, netip.AddrPortFrom(pick(services), servicePort), enough)
				if err != nil || got.ID != "far" {
					t.Fatalf("got %v, %v, want an answer of far", got, err)
				}
				if got.Local.Addr() != pick(client.Addrs) || got.Peer.Addr() != pick(top.NodeAddrs) {
					t.Errorf("asked from %v, seen as %v, want from %v, seen as %v",
						got.Local.Addr(), got.Peer.Addr(), pick(client.Addrs), pick(top.NodeAddrs))
				}
			})
			expectPackets(t, sniffer)
		})
	}
}
