package main

import (
	"strings"
	"testing"
)

// TestServedOnlyByARunningProxy: tables that an ended nftproxy left do not serve the node in
// kube-proxy's place.
func TestServedOnlyByARunningProxy(t *testing.T) {
	w := newFormerWorld(t)
	served := func() error {
		return w.ns.Do(checkServed)
	}
	proxy := w.run("nftproxy")
	if err := served(); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	proxy.end()
	w.want("after its end", "ip nftproxy", "ip6 nftproxy")
	if err := served(); err == nil || !strings.Contains(err.Error(), "no table of a running nftproxy for") {
		t.Errorf("after its end: got %v", err)
	}
}
