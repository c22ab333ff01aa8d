package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// checked runs check in a namespace and returns its exit status and the lines that are not green.
func checked(t *testing.T, ns *testnet.Namespace, flags ...string) (status int, notGreen []string) {
	t.Helper()
	stdout, stderr, status := runIn(t, ns, append([]string{"check"}, flags...)...)
	if stderr != "" {
		t.Errorf("check %v says %s", flags, stderr)
	}
	for line := range strings.Lines(stdout) {
		if strings.HasPrefix(line, "yellow ") || strings.HasPrefix(line, "red ") {
			notGreen = append(notGreen, strings.TrimSpace(line))
		}
	}
	return status, notGreen
}

// TestCheckBesideItself: the servers of the nftproxy that keeps the table are known as such, with and without TLS and
// at other addresses of their ports. A server of another program is in the way, and so is one of an nftproxy with
// another table.
func TestCheckBesideItself(t *testing.T) {
	topology := testnet.NewForTest(t, testnet.Config{})
	ns := topology.Node
	later := time.Now().Add(time.Hour)
	pair := newPair(t, 1, later)
	files, publish := secret(t)
	publish(pair.certificate, pair.key)
	manifests := manifest(t, webManifest(", type: NodePort", "10.244.7.1"))
	tls := []string{
		"--nftproxy-metrics-tls-cert-file", files.Certificate, "--nftproxy-metrics-tls-private-key-file", files.Key,
		"--nftproxy-healthz-tls-cert-file", files.Certificate, "--nftproxy-healthz-tls-private-key-file", files.Key,
	}
	for name, c := range map[string]struct {
		metrics, health string
		flags           []string
	}{
		"defaults": {"127.0.0.1:10249", "0.0.0.0:10256", []string{"--nodeport-addresses=primary,localhost",
			"--nftproxy-eject=on"}},
		"TLS":    {"127.0.0.1:10249", "0.0.0.0:10256", tls},
		"others": {"[::]:10249", "[::1]:10256", []string{"--nftproxy-counters=metrics"}},
	} {
		r := start(t, ns, append([]string{
			"--nftproxy-manifests", manifests, "--cluster-cidr=10.244.0.0/16", "--nftproxy-probe-bind-address=127.0.0.1:10266",
			"--metrics-bind-address=" + c.metrics, "--healthz-bind-address=" + c.health,
		}, c.flags...)...)
		missing := map[string]bool{"synced": true, "metrics": true, "health": true, "probe": true}
		r.await("a sync and three servers", func(l logged) bool {
			delete(missing, l.Msg)
			if l.Msg == "serving" {
				delete(missing, l.Server)
			}
			return len(missing) == 0
		})
		if status, notGreen := checked(t, ns); status != 0 || len(notGreen) > 0 {
			t.Errorf("%s: exit status %d: %q", name, status, notGreen)
		}
		status, notGreen := checked(t, ns, "--nftproxy-table=second")
		for _, server := range []string{"health", "metrics", "probe"} {
			if !slices.ContainsFunc(notGreen, func(line string) bool {
				return strings.Contains(line, "ports: "+server) && strings.Contains(line, "that does not keep the table second")
			}) {
				t.Errorf("%s: a second nftproxy: exit status %d: %q", name, status, notGreen)
			}
		}
		r.end()
	}
	// Another program has a port, and nftproxy the other one.
	l, err := ns.Listen(t.Context(), "tcp", "0.0.0.0:10256")
	if err != nil {
		t.Fatal(err)
	}
	go func() { // It takes connections and answers nothing.
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			_ = conn.Close()
		}
	}()
	start(t, ns, "--nftproxy-manifests", manifests, "--metrics-bind-address=127.0.0.1:10249").awaitSyncAndServer(
		"127.0.0.1:10249")
	status, notGreen := checked(t, ns)
	if status != 1 || len(notGreen) != 1 || !strings.Contains(notGreen[0], "ports: health: 0.0.0.0:10256 is in use") {
		t.Errorf("beside another program: exit status %d: %q", status, notGreen)
	}
	_ = l.Close() // It has no data to lose.
}

// TestRangesAreStrict: a range or list of a flag is taken as a whole or not at all.
func TestRangesAreStrict(t *testing.T) {
	for text, want := range map[string][2]uint16{
		"30000-32767": {30000, 32767}, "1-1": {1, 1}, "20000": {20000, 20000}, "30000+2767": {30000, 32767},
		"65535": {65535, 65535},
		"1-2-3": {}, "1-2x": {}, "x1-2": {}, "1 -2": {}, "1-": {}, "-2": {}, "": {}, "2-1": {}, "0-9": {}, "1-65536": {},
		"1,2": {}, "1-2,3-4": {},
	} {
		got, err := parseNodePorts(text)
		if got != want || (err == nil) != (want != [2]uint16{}) {
			t.Errorf("--node-ports %q: got %d, %v, want %d", text, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "--node-ports: \""+text+"\": want a range of ports") {
			t.Errorf("--node-ports %q: %v", text, err)
		}
	}
	for flag, texts := range map[string][]string{
		"cluster-cidr": {"10.0.0.0/8,", ",10.0.0.0/8", "10.0.0.0/8,,fd00::/8", "10.0.0.0/8/9",
			"10.0.0.0/8 fd00::/8", "10.0.0.0/+8", ","},
		"nftproxy-no-masquerade-cidrs":         {"10.0.0.0/8,", "10.0.0.0/8/9"},
		"nodeport-addresses":                   {"10.0.0.0/8,", "10.0.0.0/8-10.0.0.1/8"},
		"ipvs-exclude-cidrs":                   {"10.0.0.0/8,", "10.0.0.0/8/9", "10.0.0.0"},
		"nftproxy-protected-node-ports":        {"22,", "22-23", "22/tcp", "+22"},
		"nftproxy-conntrack-clean-established": {"tcp,", "tcp sctp"},
		"feature-gates":                        {"=true", "A=true=false", "A=true B=true", "A=true,"},
		"healthz-bind-address":                 {"127.0.0.1:1-2", "127.0.0.1:+1", "127.0.0.1:1:2"},
		"iptables-min-sync-period":             {"1s,2s", "1s-2s", "1h 2m"},
	} {
		for _, text := range texts {
			wantFlagError(t, []string{"run"}, flag, text, "")
		}
	}
	for _, text := range []string{"10.0.0.0/8,", "10.0.0.0/8/9"} {
		wantFlagError(t, []string{"check"}, "service-cidr", text, "")
	}
}
