package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"nftproxy/test/lib/testnet"
)

// TestScrapeIsOnThePage: docs/metrics.md has each metric that a process serves, whatever it was asked for.
func TestScrapeIsOnThePage(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	ns := testnet.NamespaceForTest(t, "scrape")
	const address = "127.0.0.1:10249"
	config := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(config, []byte(configHead+"metricsBindAddress: "+address+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, ns, "--nftproxy-manifests", manifest(t, webManifest("", "10.244.0.1")), "--nftproxy-eject=on",
		"--nftproxy-counters=metrics",
		"--nftproxy-conntrack-sysctl-dir", t.TempDir(), "--config", config)
	r.awaitSyncAndServer(address)
	served := regexp.MustCompile(`(?m)^# TYPE (\S+) `).FindAllStringSubmatch(get(t, ns, address, "/metrics"), -1)
	if len(served) < 50 {
		t.Fatalf("%d metrics", len(served))
	}
	for _, m := range served {
		if name := m[1]; !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") &&
			!strings.Contains(string(text), "| `"+name+"` |") {
			t.Errorf("docs/metrics.md lacks %s", name)
		}
	}
}
