package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/look/inspect"
	"nftproxy/test/lib/testnet"
)

// getJSON runs a command of get that must succeed, and decodes what it prints.
func getJSON[T any](f *flows, args ...string) (list T) {
	f.Helper()
	out, errs, code := runIn(f.T, f.Node, append(append([]string{"get"}, args...), "-o", "json")...)
	if code != 0 {
		f.Fatalf("nftproxy get %s: exit code %d:\n%s", strings.Join(args, " "), code, errs)
	}
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		f.Fatalf("%v:\n%s", err, out)
	}
	return list
}

// endpoints returns a line for each row of get endpoints.
func endpoints(f *flows, args ...string) []string {
	f.Helper()
	lines := []string{}
	for _, r := range getJSON[endpointList](f, append([]string{"endpoints"}, args...)...).Endpoints {
		local := "unknown"
		if r.Local != nil {
			local = fmt.Sprint(*r.Local)
		}
		lines = append(lines, fmt.Sprintf("%s/%s %s -> %s %s, local %s, %d connections",
			r.Namespace, r.Service, inspect.PortText(r.PortName, r.Protocol, r.Port), r.Endpoint, r.State, local, *r.Connections))
	}
	return lines
}

// TestGetDraining: an endpoint that has left the rules is shown with its connections, from
// pods and by a node port, until they are closed.
func TestGetDraining(t *testing.T) {
	f := newFlows(t)
	f.rules(f.services(f.one, f.two))
	conn := f.dial("10.96.0.10:80")
	f.ask(f.Outside, f.OutsideAddrs.V4().String()+":4030", f.NodeAddrs.V4().String()+":30053")
	f.want("active", endpoints(f, "shop/cart", "--address", "10.96.0.10"),
		"shop/cart 80/tcp -> ONE:8080 active, local true, 1 connections",
		"shop/cart 53/udp -> ONE:8080 active, local true, 1 connections", "shop/cart 53/udp -> [ONE6]:8080 active, local true, 0 connections")
	f.want("nothing drains", endpoints(f, "--draining"))

	f.rules(f.services(f.two, f.two))
	f.want("draining", endpoints(f, "--draining"),
		"shop/cart 80/tcp -> ONE:8080 draining, local unknown, 1 connections", "shop/cart 53/udp -> ONE:8080 draining, local unknown, 1 connections")
	f.want("by its address", endpoints(f, "--address", f.one.Addrs.V4().String(), "--port", "8080"),
		"shop/cart 80/tcp -> ONE:8080 draining, local unknown, 1 connections", "shop/cart 53/udp -> ONE:8080 draining, local unknown, 1 connections")
	out, _, _ := runIn(t, f.Node, "get", "endpoints", "cart", "--port", "80", "--no-headers")
	if !strings.Contains(strings.Join(strings.Fields(out), " ")+" ", f.one.Addrs.V4().String()+":8080 - draining 1 ") {
		t.Errorf("get endpoints:\n%s", out)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for len(endpoints(f, "--draining", "--port", "80")) > 0 { // until the server has closed too
		if time.Now().After(deadline) {
			t.Fatalf("closed, and still %s", endpoints(f, "--draining", "--port", "80"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestGetAffinity: the kernel's remembered clients are shown with their endpoint and the
// time that is left, in bounded number.
func TestGetAffinity(t *testing.T) {
	f := newFlows(t)
	f.rules(fmt.Sprintf(`node node
  address %s
service shop/sticky created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  cluster-ip fd00:96::a
  affinity 7200s
  port dns udp 53
    endpoint %s node ready serving
    endpoint %s node ready serving
`, f.NodeAddrs.V4(), at(f.one.Addrs.V4()), at(f.one.Addrs.V6())))
	f.ask(f.client.NS, f.client.Addrs.V4().String()+":4010", "10.96.0.10:53")
	f.ask(f.two.NS, f.two.Addrs.V4().String()+":4010", "10.96.0.10:53")
	f.ask(f.client.NS, "["+f.client.Addrs.V6().String()+"]:4010", "[fd00:96::a]:53")
	clients := func(args ...string) []string {
		t.Helper()
		lines := []string{}
		for _, c := range getJSON[clientList](f, append([]string{"affinity"}, args...)...).Clients {
			if c.ExpiresSeconds < 7000 || c.ExpiresSeconds > 7200 {
				t.Errorf("it expires in %d s: %+v", c.ExpiresSeconds, c)
			}
			lines = append(lines, fmt.Sprintf("%s/%s:%s %s -> %s, list %s, of %d s, stale %v", c.Namespace, c.Service, c.PortName, c.Client, c.Endpoint, c.List, c.TimeoutSeconds, c.Stale))
		}
		return lines
	}
	one := "shop/sticky:dns CLIENT -> ONE:8080, list cluster, of 7200 s, stale false"
	two := "shop/sticky:dns TWO -> ONE:8080, list cluster, of 7200 s, stale false"
	const six = "shop/sticky:dns CLIENT6 -> [ONE6]:8080, list cluster, of 7200 s, stale false"
	if f.client.Addrs.V4().Compare(f.two.Addrs.V4()) > 0 {
		one, two = two, one // sorted by address
	}
	f.want("all", clients(), one, two, six)
	f.want("of a client", clients("--address", f.client.Addrs.V6().String()), six)
	f.want("of an endpoint", clients("--address", f.one.Addrs.V4().String(), "--port", "8080"), one, two)
	f.want("of the Service by its address", clients("--address", "10.96.0.10"), one, two, six)
	f.want("of another port", clients("--port", "54"))
	if list := getJSON[clientList](f, "affinity", "--limit", "1"); len(list.Clients) != 1 || !list.Truncated {
		t.Errorf("--limit 1: %+v", list)
	}
	out, errs, code := runIn(t, f.Node, "get", "affinity", "--limit", "2")
	if head, _, _ := strings.Cut(out, "\n"); code != 0 || strings.Join(strings.Fields(head), " ") != "NAMESPACE SERVICE PORT CLIENT ENDPOINT EXPIRES" || strings.Count(out, "\n") != 3 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if diff := cmp.Diff("nftproxy: only the first 2 clients are shown; --limit 0 shows all\n", errs); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// TestCompletion: a shell completes resources, outputs, and the names of namespaces,
// Services and chains of the kernel's tables. Names that a shell could take for something
// else are left out.
func TestCompletion(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "complete")
	complete := func(args ...string) []string {
		t.Helper()
		out, errs, code := runIn(t, ns, append([]string{"__complete"}, args...)...)
		if code != 0 {
			t.Fatalf("%q: exit code %d: %s", args, code, errs)
		}
		words := []string{}
		for line := range strings.Lines(out) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
				words = append(words, word)
			}
		}
		return words
	}
	check := func(args []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(append([]string{}, want...), complete(args...)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", args, diff)
		}
	}
	check([]string{"get", "services", ""})
	loadServices(t, ns, exampleServices+`service x$(reboot)/y created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.30
  port - tcp 80
`)
	check([]string{"get", ""}, "affinity", "chains", "endpoints", "services")
	check([]string{"get", "services", ""}, "kube-system/kube-dns", "shop/cart")
	check([]string{"get", "endpoints", "shop/"}, "shop/cart")
	check([]string{"get", "affinity", "-n", "shop", ""}, "cart")
	check([]string{"get", "services", "shop/cart", ""}, "kube-system/kube-dns")
	check([]string{"get", "services", "--namespace", ""}, "kube-system", "shop")
	check([]string{"get", "services", "-o", ""}, "text", "wide", "json", "yaml")
	check([]string{"get", "chains", "ref"}, "refuse")
	if out, _, code := runIn(t, ns, "completion", "bash"); code != 0 || !strings.Contains(out, "__start_nftproxy") {
		t.Errorf("completion bash: exit code %d, %d bytes", code, len(out))
	}
}

// TestGetHostileNames: names in tables that another process wrote do not reach a terminal
// with control characters.
func TestGetHostileNames(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "hostile")
	loadServices(t, ns, "node node-1\nservice evil\x1b[2J/a\x07b created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.30\n  port - tcp 80\n    endpoint 10.244.1.5:80 node-1 ready serving\n")
	for _, args := range [][]string{{"services"}, {"services", "-o", "wide"}, {"services", "-o", "json"}, {"services", "-o", "yaml"}, {"endpoints"}, {"endpoints", "\x1b[2J"}} {
		out, errs, _ := runIn(t, ns, append([]string{"get"}, args...)...)
		if all := out + errs; strings.ContainsAny(all, "\x1b\x07") || !strings.Contains(strings.ToLower(all), "x1b") && !strings.Contains(all, `\u001b`) && !strings.Contains(all, `\e`) {
			t.Errorf("get %q prints %q", args, all)
		}
	}
	if a := netip.MustParseAddr("10.96.0.30"); !strings.Contains(transcript(t, ns, "get", "services"), a.String()) {
		t.Error("the Service is not shown")
	}
}
