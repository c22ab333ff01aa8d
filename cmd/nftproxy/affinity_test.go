package main

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// stickyManifest is a service with session affinity and its endpoints.
func stickyManifest(endpoints ...netip.Addr) string {
	var texts []string
	for _, a := range endpoints {
		texts = append(texts, a.String())
	}
	return webManifest(", sessionAffinity: ClientIP", texts...)
}

// TestAffinity: a client stays with its endpoint, over a restart too, until the
// endpoint goes; then it is forgotten, and the client gets another.
func TestAffinity(t *testing.T) {
	topology := testnet.NewForTest(t, testnet.Config{})
	pods := map[string]*testnet.Pod{}
	for _, name := range []string{"client", "one", "two", "three"} {
		pod, err := topology.AddPod(name)
		if err != nil {
			t.Fatal(err)
		}
		pods[name] = pod
		for _, a := range pod.Addrs {
			if _, err := pod.NS.Serve(testnet.TCP, netip.AddrPortFrom(a, 8080), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	ask := func(address string) string {
		t.Helper()
		a, err := pods["client"].NS.Ask(t.Context(), testnet.TCP, netip.MustParseAddrPort(address), 10*time.Second)
		if err != nil || a.Outcome != testnet.Answered {
			t.Fatalf("%s: %+v, %v", address, a, err)
		}
		return a.ID
	}
	addresses := []string{"10.96.0.10:80", "[fd00:96::a]:80"}
	stay := func(when string, with map[string]string) {
		t.Helper()
		for range 20 {
			for _, address := range addresses {
				if got := ask(address); got != with[address] {
					t.Fatalf("%s: %s went to %s, want %s", when, address, got, with[address])
				}
			}
		}
	}
	var all []netip.Addr
	for _, name := range []string{"one", "two", "three"} {
		all = append(all, pods[name].Addrs...)
	}
	path := manifest(t, stickyManifest(all...))
	r := start(t, topology.Node, "--nftproxy-manifests", path, "--cluster-cidr", "10.244.0.0/16,fd00:244::/56")
	r.awaitSync()
	chosen := map[string]string{}
	for _, address := range addresses {
		chosen[address] = ask(address)
	}
	stay("at first", chosen)
	r.end()
	stay("without the proxy", chosen)
	r = start(t, topology.Node, "--nftproxy-manifests", path, "--cluster-cidr", "10.244.0.0/16,fd00:244::/56")
	r.awaitSync()
	stay("after a restart", chosen)

	var left []netip.Addr
	for _, name := range []string{"one", "two", "three"} {
		for _, a := range pods[name].Addrs {
			address := addresses[0]
			if a.Is6() {
				address = addresses[1]
			}
			if chosen[address] != name {
				left = append(left, a)
			}
		}
	}
	// In one step: half a manifest would be another change.
	if err := os.Rename(manifest(t, stickyManifest(left...)), path); err != nil {
		t.Fatal(err)
	}
	swept := 0
	for swept < 2 {
		l := r.await("clients that are forgotten", func(l logged) bool { return strings.HasPrefix(l.Msg, "forgot clients of endpoints") })
		swept += l.Clients
	}
	if swept != 2 {
		t.Errorf("%d clients forgotten, want one of each family", swept)
	}
	again := map[string]string{}
	for _, address := range addresses {
		if again[address] = ask(address); again[address] == chosen[address] {
			t.Errorf("%s still goes to %s", address, again[address])
		}
	}
	stay("with the others", again)
}
