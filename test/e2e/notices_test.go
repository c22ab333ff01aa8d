package e2e

import (
	"testing"

	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// listenIn listens to the kernel's notices of transactions on nftables.
func listenIn(t *testing.T, ns *testnet.Namespace) *netfilter.Monitor {
	t.Helper()
	m, err := netfilter.Listen(ns.Fd())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}
