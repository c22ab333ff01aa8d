package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/test/lib/testnet"
)

// dnsManifest returns a UDP Service with its endpoints, in both families.
func dnsManifest(endpoints ...netip.Addr) string {
	text := `
apiVersion: v1
kind: Service
metadata: {name: dns}
spec: {clusterIPs: [10.96.0.10, "fd00:96::a"], ports: [{port: 53, protocol: UDP}]}
`
	for i, a := range endpoints {
		family := "IPv4"
		if a.Is6() {
			family = "IPv6"
		}
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-%d, labels: {kubernetes.io/service-name: dns}}
addressType: %s
ports: [{port: 5300, protocol: UDP}]
endpoints: [{addresses: ["%s"]}]
`, i, family, a)
	}
	return text
}

// TestStaleFlows: a client keeps sending from one socket. Its flow is removed when the
// endpoint goes, also while no proxy runs, and when its Service goes then.
func TestStaleFlows(t *testing.T) {
	topology := testnet.NewForTest(t, testnet.Config{})
	pods := map[string]*testnet.Pod{}
	for _, name := range []string{"client", "one", "two", "three"} {
		pod, err := topology.AddPod(name)
		if err != nil {
			t.Fatal(err)
		}
		pods[name] = pod
		for _, a := range pod.Addrs {
			if _, err := pod.NS.Serve(testnet.UDP, netip.AddrPortFrom(a, 5300), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	var clients []net.Conn
	for _, to := range []string{"10.96.0.10:53", "[fd00:96::a]:53"} {
		c, err := pods["client"].NS.Dial(t.Context(), "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	wantAnswer := func(want string) {
		t.Helper()
		for _, c := range clients {
			b := make([]byte, 200)
			err := c.SetDeadline(time.Now().Add(20 * time.Second))
			if err == nil {
				_, err = c.Write([]byte("?"))
			}
			n := 0
			if err == nil {
				n, err = c.Read(b)
			}
			if err != nil {
				t.Fatal(err)
			}
			if id, _, err := testnet.ParseAnswer(strings.TrimSpace(string(b[:n]))); id != want || err != nil {
				t.Errorf("%s: answer from %q, %v, want %q", c.RemoteAddr(), id, err, want)
			}
		}
	}
	path := manifest(t, dnsManifest(pods["one"].Addrs...))
	become := func(text string) {
		t.Helper()
		if err := os.Rename(manifest(t, text), path); err != nil { // in one step
			t.Fatal(err)
		}
	}
	run := func() *running {
		return start(t, topology.Node, "--nftproxy-manifests", path, "--cluster-cidr", "10.244.0.0/16,fd00:244::/56")
	}
	wantRemoved := func(r *running, want map[string]int) {
		t.Helper()
		got := map[string]int{}
		for got["service gone"]+got["endpoint gone"] < 2 {
			l := r.await("removed entries", func(l logged) bool { return l.Msg == "removed stale conntrack entries" })
			for why, n := range l.Why {
				got[why] += n
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("removed (-want +got):\n%s", diff)
		}
	}

	r := run()
	r.awaitSync()
	wantAnswer("one")
	become(dnsManifest(pods["two"].Addrs...))
	wantRemoved(r, map[string]int{"endpoint gone": 2})
	wantAnswer("two")
	r.end()

	become(dnsManifest(pods["three"].Addrs...))
	r = run()
	wantRemoved(r, map[string]int{"endpoint gone": 2})
	wantAnswer("three")
	r.end()

	// Only the tables know the former Service now.
	become(strings.ReplaceAll(strings.ReplaceAll(dnsManifest(pods["three"].Addrs...), "10.96.0.10", "10.96.0.11"), "fd00:96::a", "fd00:96::b"))
	r = run()
	wantRemoved(r, map[string]int{"service gone": 2})
	r.end()
}
