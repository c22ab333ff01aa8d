package testnet_test

import (
	"context"
	"net/netip"
	"testing"

	"nftproxy/test/lib/testnet"
)

// TestNothingIsLeft uses everything once, closes the topology with all of it
// open, and looks at what the process still holds.
func TestNothingIsLeft(t *testing.T) { testnet.CheckLeaks(t, useEverything) }

func useEverything(t *testing.T) {
	t.Helper()
	top := testnet.NewForTest(t, testnet.Config{})
	pod, client := addPod(t, top.AddPod, "pod"), addPod(t, top.AddPod, "client")
	addPod(t, top.AddRemotePod, "far")
	at := netip.AddrPortFrom(pod.Addrs.V4(), 80)
	for _, proto := range []string{testnet.TCP, testnet.UDP, testnet.SCTP} {
		if _, err := pod.NS.Serve(proto, at, "pod"); err != nil {
			t.Fatal(err)
		}
		expectAnswer(t, client.NS, client.Addrs.V4(), proto, at, "pod")
	}
	conn, err := client.NS.Dial(context.Background(), "tcp", at.String()) // the server echoes on
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	sniffer, err := top.SniffUplink(top.ClusterCIDRs...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sniffer.Packets(); err != nil {
		t.Fatal(err)
	}
	if _, err := top.Node.ListenSCTP(netip.AddrPortFrom(top.NodeAddrs.V4(), 0)); err != nil {
		t.Fatal(err)
	}
	if err := top.RemovePod("client"); err != nil {
		t.Fatal(err)
	}
	if err := top.Close(); err != nil {
		t.Fatal(err)
	}
}
