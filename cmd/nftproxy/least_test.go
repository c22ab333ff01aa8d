package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"nftproxy/look/inspect"
	"nftproxy/test/lib/testnet"
)

// TestLeastConnections: the commands show the shares that follow from connections, verify takes them for right,
// and a restart keeps them and writes nothing.
func TestLeastConnections(t *testing.T) {
	w := testnet.NewForTest(t, testnet.Config{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	client, err := w.AddPod("client")
	must(err)
	var addrs []string
	for _, name := range []string{"busy", "idle", "other"} {
		pod, err := w.AddPod(name)
		must(err)
		_, err = pod.NS.Serve(testnet.TCP, netip.AddrPortFrom(pod.Addrs.V4(), 8080), name)
		must(err)
		addrs = append(addrs, pod.Addrs.V4().String())
	}
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	write := func(endpoints ...string) {
		t.Helper()
		text := strings.Replace(webManifest("", endpoints...), "{name: web}",
			`{name: web, annotations: {nftproxy.io/balance: least-connections}}`, 1)
		must(os.WriteFile(file+"-new", []byte(text), 0o600))
		must(os.Rename(file+"-new", file))
	}
	write(addrs[0])
	flags := []string{"--nftproxy-manifests", file, "--cluster-cidr", "10.244.0.0/16,fd00:244::/56"}
	r := start(t, w.Node, flags...)
	r.awaitSync()
	const held = 40
	for range held {
		conn, err := client.NS.Dial(t.Context(), "tcp", "10.96.0.10:80")
		must(err)
		t.Cleanup(func() { conn.Close() })
	}
	write(addrs...)
	v := &verified{T: t, ns: w.Node, flags: flags}
	run := func(args ...string) string {
		t.Helper()
		out, errs, code := runCommand(t, w.Node, exec.CommandContext(t.Context(), "nftproxy", args...))
		if code != 0 {
			t.Fatalf("%v: exit code %d\n%s%s", args, code, out, errs)
		}
		return out
	}
	busy := func() (share float64, connections int) {
		t.Helper()
		var list struct{ Endpoints []inspect.EndpointRow }
		must(json.Unmarshal([]byte(run("get", "endpoints", "-o", "json")), &list))
		for _, row := range list.Endpoints {
			if row.Endpoint.Addr().String() == addrs[0] && len(row.Shares) > 0 && row.Connections != nil {
				return row.Shares[0], *row.Connections
			}
		}
		return 1, 0
	}
	const low = 0.2
	for start := time.Now(); ; r.awaitSync() { // Slots move by a sync.
		share, n := busy()
		if share < low && n == held {
			break
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("the busy endpoint has %d connections and a share of %.2f", n, share)
		}
	}
	v.want("while slots move", 0)
	if out := run("explain", "--from", client.Addrs.V4().String(), "10.96.0.10:80"); !strings.Contains(out,
		"the less likely the more connections of this node it has") {
		t.Errorf("explain does not say how endpoints are chosen:\n%s", out)
	}
	if out := run("get", "services", "-o", "wide"); !strings.Contains(out, "balance=least-connections") {
		t.Errorf("get does not name the option:\n%s", out)
	}
	r.end()
	before, _ := busy()
	r = start(t, w.Node, flags...)
	if n := r.awaitSync(); n != 0 {
		t.Errorf("a restart writes %d objects", n)
	}
	if after, _ := busy(); after > low {
		t.Errorf("the share of the busy endpoint is %.2f after a restart, %.2f before", after, before)
	}
	v.want("after a restart", 0)
	r.end()
}
