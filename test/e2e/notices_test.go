package e2e

import (
	"testing"

	"nftproxy/test/nftmonitor"
	"nftproxy/test/testnet"
)

// listenIn listens to the kernel's notices of transactions on nftables.
func listenIn(t *testing.T, ns *testnet.Namespace) *nftmonitor.Monitor {
	t.Helper()
	m, err := nftmonitor.Listen(ns.Fd())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}
