package nftproxy_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

func init() { flag.Bool("update", false, "write docs/internals/dependencies.md") }

// dependenciesPage lists what is linked into the binary.
const dependenciesPage = "docs/internals/dependencies.md"

// TestDependencies holds that docs/internals/dependencies.md has each module that is
// linked into nftproxy. With -update the page is written.
func TestDependencies(t *testing.T) {
	page := dependencies(linkedPackages(t, "./cmd/nftproxy", "linux"))
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(dependenciesPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(dependenciesPage)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(have), page); diff != "" {
		t.Errorf("%s is stale: run go test . -run TestDependencies -update (-have +want):\n%s", dependenciesPage, diff)
	}
}

// linked is a package of the binary, as go list tells of it.
type linked struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Module     *struct{ Path, Version string }
}

func linkedPackages(t *testing.T, command, system string) []linked {
	t.Helper()
	c := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Imports,Module", command)
	c.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=")
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	var packages []linked
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p linked
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// TestPluginWithoutKernel: the plugin of kubectl runs where there is no netlink, so it links nothing that needs it.
func TestPluginWithoutKernel(t *testing.T) {
	for _, system := range []string{"linux", "darwin", "windows"} {
		packages := linkedPackages(t, "./cmd/kubectl-nftproxy", system)
		if len(packages) < 100 {
			t.Fatalf("%s: %d packages: nothing was tested", system, len(packages))
		}
		for _, p := range packages {
			if strings.Contains(p.ImportPath, "netlink") || strings.Contains(p.ImportPath, "nftables") ||
				strings.Contains(p.ImportPath, "conntrack") || strings.HasPrefix(p.ImportPath, "nftproxy/nft") {
				t.Errorf("%s: the plugin links %s", system, p.ImportPath)
			}
		}
	}
}

// TestDaemonWithoutClientset: client-go's clients for all groups of the API, and their scheme, cost memory on each node
// and CPU time at each start. The daemon needs the groups of wire.Scheme.
func TestDaemonWithoutClientset(t *testing.T) {
	groups := 0
	for _, p := range linkedPackages(t, "./cmd/nftproxy", "linux") {
		if strings.HasPrefix(p.ImportPath, "k8s.io/client-go/kubernetes") ||
			strings.HasPrefix(p.ImportPath, "k8s.io/client-go/discovery") {
			t.Errorf("the daemon links %s", p.ImportPath)
		}
		if strings.HasPrefix(p.ImportPath, "k8s.io/api/") {
			groups++
		}
	}
	if groups != 4 {
		t.Errorf("the daemon links %d versions of groups of the API, want 4", groups)
	}
}

// dependencies is the text of the page.
func dependencies(packages []linked) string {
	type module struct {
		version  string
		packages int
		users    map[string]bool // those of nftproxy that import it
	}
	modules, of := map[string]*module{}, map[string]string{}
	for _, p := range packages {
		if p.Standard || p.Module.Path == "nftproxy" {
			continue
		}
		of[p.ImportPath] = p.Module.Path
		if modules[p.Module.Path] == nil {
			modules[p.Module.Path] = &module{version: p.Module.Version, users: map[string]bool{}}
		}
		modules[p.Module.Path].packages++
	}
	for _, p := range packages {
		user, ours := strings.CutPrefix(p.ImportPath, "nftproxy/")
		for _, imported := range p.Imports {
			if m := modules[of[imported]]; ours && m != nil {
				m.users["`"+user+"`"] = true
			}
		}
	}
	var table strings.Builder
	direct, others := 0, []string{}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		m := modules[name]
		if len(m.users) == 0 {
			others = append(others, name+" "+m.version)
			continue
		}
		direct++
		users := strings.Join(slices.Sorted(maps.Keys(m.users)), ", ")
		fmt.Fprintf(&table, "| %s | %s | %d | %s |\n", name, m.version, m.packages, users)
	}
	return fmt.Sprintf("<!-- Written by: go test . -run TestDependencies -update -->\n\n# Dependencies\n\n"+
		"The binary has packages of %d modules beside Go's standard library. nftproxy imports %d of them itself.\n"+
		"[CONTRIBUTING.md](../../CONTRIBUTING.md#the-size-of-the-binary) says how many bytes they cost.\n\n"+
		"| Module | Version | Packages | Imported by |\n|---|---|---|---|\n%s\n"+
		"The others come with these:\n\n%s.\n", len(modules), direct, table.String(), strings.Join(others, ",\n"))
}
