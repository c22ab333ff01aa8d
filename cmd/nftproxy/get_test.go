package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/testnet"
)

// loadServices writes the program of Services, in the text form of a snapshot, to the
// kernel of a namespace. No process owns the tables.
func loadServices(t *testing.T, ns *testnet.Namespace, services string) {
	t.Helper()
	s, err := service.Parse(strings.NewReader(services))
	if err != nil {
		t.Fatal(err)
	}
	loadSnapshot(t, ns, s)
}

func loadSnapshot(t *testing.T, ns *testnet.Namespace, s service.Snapshot) {
	t.Helper()
	clusterCIDRs, err := parseClusterCIDR("10.244.0.0/16,fd00:244::/56")
	if err != nil {
		t.Fatal(err)
	}
	p := ruleset.Compile(ruleset.Config{
		Table: ruleset.DefaultTable, Settings: service.Settings{ClusterCIDRs: clusterCIDRs},
	}, s)
	conn, err := kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: ns.Fd()}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	m, err := conn.Read(p)
	if err != nil {
		t.Fatal(err)
	}
	batch, _ := nft.Adopt(m, p).Plan(p, time.Unix(0, 0))
	if err := conn.Apply(batch); err != nil {
		t.Fatal(err)
	}
}

// TestGet runs the commands of each file under testdata/get on a real kernel that has the
// file's Services, and compares what people and programs read. A section "$ COMMAND" has
// what nftproxy COMMAND prints: first to stdout, then to stderr behind "! ", then the exit
// status if it is not 0. With -update it writes these sections.
func TestGet(t *testing.T) {
	files, err := filepath.Glob("testdata/get/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			ns := testnet.NamespaceForTest(t, "get")
			ran := 0
			for i := range archive.Files {
				section := &archive.Files[i]
				command, is := strings.CutPrefix(section.Name, "$ ")
				if !is {
					loadServices(t, ns, string(section.Data))
					continue
				}
				ran++
				got := transcript(t, ns, strings.Fields(command)...)
				if *update {
					section.Data = []byte(got)
				}
				if diff := cmp.Diff(string(section.Data), got); diff != "" {
					t.Errorf("nftproxy %s (-want +got):\n%s", command, diff)
				}
			}
			if ran == 0 {
				t.Error("the file has no command")
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// transcript runs a command and returns what it prints, and its exit status.
func transcript(t *testing.T, ns *testnet.Namespace, args ...string) string {
	t.Helper()
	stdout, stderr, code := runIn(t, ns, args...)
	var b strings.Builder
	b.WriteString(stdout)
	for line := range strings.Lines(stderr) {
		b.WriteString("! " + line)
	}
	if code != 0 {
		b.WriteString("exit status " + string(rune('0'+code)) + "\n")
	}
	return b.String()
}

// TestGetBesideTheProxy: a running proxy owns its tables, and get reads them all the same.
func TestGetBesideTheProxy(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "owned")
	r := start(t, ns, "--nftproxy-manifests", manifest(t, webManifest("", "10.244.1.5", "fd00:244::5")))
	r.awaitSync()
	for _, resource := range []string{"services", "endpoints", "chains"} {
		if stdout, stderr, code := runIn(t, ns, "get", resource); code != 0 || strings.Count(stdout, "\n") < 2 || stderr != "" {
			t.Errorf("get %s: exit code %d, printed\n%s%s", resource, code, stdout, stderr)
		}
	}
	r.end()
}
