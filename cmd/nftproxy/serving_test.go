package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
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

// serving makes a client and three pods that answer on the port.
func serving(t *testing.T, protocol string, port uint16) (*testnet.Topology, map[string]*testnet.Pod) {
	t.Helper()
	topology := testnet.NewForTest(t, testnet.Config{})
	pods := map[string]*testnet.Pod{}
	for _, name := range []string{"client", "one", "two", "three"} {
		pod, err := topology.AddPod(name)
		if err != nil {
			t.Fatal(err)
		}
		pods[name] = pod
		for _, a := range pod.Addrs {
			if _, err := pod.NS.Serve(protocol, netip.AddrPortFrom(a, port), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	return topology, pods
}

// TestStaleFlows: a client keeps sending from one socket. Its flow is removed when the
// endpoint goes, also while no proxy runs, and when its Service goes then.
func TestStaleFlows(t *testing.T) {
	topology, pods := serving(t, testnet.UDP, 5300)
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
			err := c.SetDeadline(time.Now().Add(time.Minute))
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
	become(strings.ReplaceAll(strings.ReplaceAll(dnsManifest(pods["three"].Addrs...), "10.96.0.10", "10.96.0.11"),
		"fd00:96::a", "fd00:96::b"))
	r = run()
	wantRemoved(r, map[string]int{"service gone": 2})
	r.end()
}

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
	topology, pods := serving(t, testnet.TCP, 8080)
	ask := func(address string) string {
		t.Helper()
		a, err := pods["client"].NS.Ask(t.Context(), testnet.TCP, netip.MustParseAddrPort(address), time.Minute)
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
		l := r.await("clients that are forgotten", func(l logged) bool {
			return strings.HasPrefix(l.Msg, "forgot clients of endpoints")
		})
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

// TestRecentConnections: the rules note which claims had a new connection, by address and by
// node port, with session affinity or without, and no other claims.
func TestRecentConnections(t *testing.T) {
	f := newFlows(t)
	f.rules(f.services(f.one, f.two) + `service shop/sticky created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.13
  affinity 1m
  port - udp 53
    endpoint ` + at(f.two.Addrs.V4()).String() + ` node ready serving
`)
	conn, err := kernel.Open(kernel.Config{NetNS: f.Node.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	noted := func() []string {
		var list []string
		for _, c := range []struct {
			addr     string
			protocol service.Protocol
			port     uint16
		}{
			{"10.96.0.10", service.UDP, 53}, {"fd00:96::a", service.UDP, 53}, {"0.0.0.0", service.UDP, 30053},
			{"::", service.UDP, 30053},
			{"10.96.0.10", service.TCP, 80}, {"10.96.0.11", service.UDP, 53}, {"10.96.0.12", service.UDP, 53},
			{"10.96.0.13", service.UDP, 53},
			{"10.96.0.99", service.UDP, 53}, {f.two.Addrs.V4().String(), service.UDP, 8080},
		} {
			claim := service.Claim{Addr: netip.MustParseAddr(c.addr), Protocol: c.protocol, Port: c.port}
			_, ok, err := conn.LearnedBy(ruleset.Recent(ruleset.DefaultTable, claim))
			if err != nil {
				t.Error(err)
			}
			if ok {
				list = append(list, claim.String())
			}
		}
		return list
	}
	client4, client6 := f.client.Addrs.V4().String(), "["+f.client.Addrs.V6().String()+"]"
	var want []string
	for _, step := range []struct {
		connect func()
		notes   []string
	}{
		{func() {}, nil},
		{func() { f.ask(f.client.NS, client4+":4010", "10.96.0.10:53") }, []string{"10.96.0.10:53/udp"}},
		{func() { f.ask(f.client.NS, client6+":4010", "[fd00:96::a]:53") }, []string{"[fd00:96::a]:53/udp"}},
		{func() {
			f.ask(f.Outside, f.OutsideAddrs.V4().String()+":4030", f.NodeAddrs.V4().String()+":30053")
		}, []string{"node port 30053/udp"}},
		{func() { f.dial("10.96.0.10:80") }, []string{"10.96.0.10:80/tcp"}},
		{func() { f.ask(f.client.NS, client4+":4013", "10.96.0.13:53") }, []string{"10.96.0.13:53/udp"}},
		{func() { f.ask(f.client.NS, client4+":4099", at(f.two.Addrs.V4()).String()) }, nil}, // not to a Service
		{func() { f.unanswered(client4+":4014", "10.96.0.99:53") }, nil},
	} {
		step.connect()
		want = append(want, step.notes...)
		got := noted()
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// variedManifest has n Services with endpoints. Some have node ports, session affinity,
// external addresses or source ranges, and some of these claim the same.
func variedManifest(n int) string {
	var b strings.Builder
	for i := range n {
		more := []string{
			"", "type: NodePort, ", "sessionAffinity: ClientIP, ", `externalIPs: [198.51.100.1], `,
			`type: LoadBalancer, loadBalancerSourceRanges: ["192.0.2.0/24", "2001:db8::/32"], `,
		}[i%5]
		nodePort := ""
		if strings.Contains(more, "type") {
			nodePort = fmt.Sprintf(", nodePort: %d", 30000+i)
		}
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {name: svc-%[1]d, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {%[2]sclusterIPs: [10.96.0.%[3]d, "fd00:96::%[3]d"], ports: [{name: http, port: 80%[4]s}, {name: dns, port: 53, protocol: UDP}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.%[3]d}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: svc-%[1]d-v4, labels: {kubernetes.io/service-name: svc-%[1]d}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 5300, protocol: UDP}]
endpoints: [{addresses: [10.244.1.%[3]d], nodeName: node-1}, {addresses: [10.244.2.%[3]d], nodeName: node-2}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: svc-%[1]d-v6, labels: {kubernetes.io/service-name: svc-%[1]d}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: dns, port: 5300, protocol: UDP}]
endpoints: [{addresses: ["fd00:244:1::%[3]d"], nodeName: node-1}]
`, i, more, i+10, nodePort)
	}
	return b.String()
}

// TestRetainFormerServices: the source is empty at a restart. What the rules serve stays,
// to the last element, and the log, /readyz and the metrics say so.
func TestRetainFormerServices(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "retain")
	if err := ns.AddAddr("lo", netip.MustParsePrefix("192.0.2.7/32")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "all.yaml")
	if err := os.WriteFile(file, []byte(variedManifest(15)), 0o644); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--nftproxy-manifests", dir, "--nodeport-addresses", "192.0.2.0/24"}
	if n := firstSync(t, ns, flags...); n == 0 {
		t.Error("the first start wrote nothing")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	const address = "127.0.0.1:10256"
	r := start(t, ns, append(flags, "--healthz-bind-address", address)...)
	written, warned, serving := -1, false, false
	r.await("a sync, the warning and the server", func(l logged) bool {
		switch {
		case l.Msg == "synced":
			written = l.Written
		case strings.HasPrefix(l.Msg, "a list lacks most Services"):
			if warned = true; l.Missing != 15 || l.Serving != 15 {
				t.Errorf("%d of %d Services are missing, want all 15", l.Missing, l.Serving)
			}
		case l.Msg == "serving" && l.Address == address:
			serving = true
		}
		return written >= 0 && warned && serving
	})
	if written != 0 {
		t.Errorf("the start with an empty source wrote %d objects", written)
	}
	want := "ok\nserving 15 Services on that the source's lists lack, until "
	if got := get(t, ns, address, "/readyz"); !strings.HasPrefix(got, want) {
		t.Errorf("/readyz: %q, want %q", got, want)
	}
	r.end()

	if n := firstSync(t, ns, append(flags, "--nftproxy-retain-missing=0")...); n == 0 {
		t.Error("with --nftproxy-retain-missing=0 nothing was removed")
	}
}

// get returns the body of an answer with status 200.
func get(t *testing.T, ns *testnet.Namespace, address, path string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	r, err := client.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v", path, r.Status, err)
	}
	return string(body)
}
