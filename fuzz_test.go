package nftproxy_test

import (
	"go/ast"
	"go/parser"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestFuzzTargets: make fuzz runs every fuzz target, and docs/evidence/reliability.md has a row for
// each.
func TestFuzzTargets(t *testing.T) {
	var targets []string
	for file, parsed := range goFiles(t, parser.SkipObjectResolution) {
		for _, d := range parsed.Decls {
			if f, is := d.(*ast.FuncDecl); is && strings.HasPrefix(f.Name.Name, "Fuzz") {
				targets = append(targets, path.Dir(file)+" "+f.Name.Name)
			}
		}
	}
	slices.Sort(targets)
	list := exec.Command("bash", "hack/fuzz.sh")
	list.Env = append(os.Environ(), "LIST=1", "FUZZ=")
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	listed := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(listed)
	if !slices.Equal(listed, targets) {
		t.Errorf("make fuzz runs\n%q\nand there are\n%q", listed, targets)
	}
	page, err := os.ReadFile("docs/evidence/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		pkg, name, _ := strings.Cut(target, " ")
		if !strings.Contains(string(page), "| `"+name+"` in `"+pkg+"` |") {
			t.Errorf("docs/evidence/reliability.md has no row for %s in %s", name, pkg)
		}
	}
}
