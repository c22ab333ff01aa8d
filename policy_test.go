// Package nftproxy_test holds the rules of the house: who may import what,
// that every package says what it promises, and how long a file may be.
package nftproxy_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxLines is the longest Go file: what does not fit holds two promises.
const maxLines = 500

// rule says which packages may import a group of others.
type rule struct {
	name    string
	matches func(importPath string) bool
	// within says which files are bound; nil stands for all of them.
	within func(file string) bool
	// allowed lists the directories that may, with all below them.
	allowed []string
	// tests says that test files are bound too.
	tests bool
}

func (r *rule) binds(file string) bool {
	return (r.tests || !strings.HasSuffix(file, "_test.go")) &&
		(r.within == nil || r.within(file)) &&
		!slices.ContainsFunc(r.allowed, func(dir string) bool { return strings.HasPrefix(file, dir+"/") })
}

// core says of a file whether it belongs to the packages that are pure: what
// they do depends on their arguments alone.
func core(file string) bool {
	return slices.Contains([]string{"nft", "nft/ruleset", "internal/service", "internal/treap"}, path.Dir(file))
}

func rules() []rule {
	prefixed := func(prefixes ...string) func(string) bool {
		return func(p string) bool {
			return slices.ContainsFunc(prefixes, func(prefix string) bool {
				return p == strings.TrimSuffix(prefix, "/") || strings.HasPrefix(p, prefix)
			})
		}
	}
	exactly := func(paths ...string) func(string) bool {
		return func(p string) bool { return slices.Contains(paths, p) }
	}
	return []rule{
		{
			name: "the core reads no file, opens no socket, throws no dice and says nothing", within: core,
			matches: exactly("os", "io/fs", "net", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand"),
		},
		{
			name:    "what is for tests stays out of the program",
			matches: prefixed("nftproxy/bench", "nftproxy/internal/aptget", "nftproxy/internal/child", "nftproxy/internal/cluster", "nftproxy/internal/nftcmd", "nftproxy/internal/nftmonitor", "nftproxy/internal/testnet", "nftproxy/internal/scenario", "nftproxy/nft/nfttest", "nftproxy/nft/ruleset/rulesettest", "nftproxy/internal/service/servicetest"),
			// The demo is a test that a person looks at, and a stage is nothing
			// but a testnet. Benchmarks are apart from the program too.
			allowed: []string{"internal/demo", "cmd", "internal/testnet", "internal/scenario/scenariotest", "internal/scenario/stage", "internal/cluster/controlplane", "internal/nftcmd", "nft/ruleset/rulesettest", "bench"},
		},
		{
			name: "k8s.io stays at the edge", matches: prefixed("k8s.io/", "sigs.k8s.io/"),
			// internal/cluster is a real control plane for tests, and
			// internal/scenario reads manifests for them.
			allowed: []string{"watch", "cmd", "internal/cluster", "internal/scenario", "bench"},
		},
		{
			name:    "only the edges talk to the kernel",
			matches: prefixed("github.com/mdlayher/", "github.com/google/nftables", "github.com/ti-mo/", "github.com/vishvananda/"),
			// testnet makes network namespaces for tests and the demo, and
			// nftmonitor and bench judge by the kernel alone.
			allowed: []string{"nft/kernel", "conntrack", "internal/hostaddr", "internal/testnet", "internal/cluster", "internal/nftmonitor", "bench"},
		},
		{
			name: "no kubernetes/kubernetes in this module", matches: prefixed("k8s.io/kubernetes"), tests: true,
		},
		{
			name: "the pure core runs no program and opens no socket", matches: prefixed("os/exec", "net/http", "syscall", "golang.org/x/sys/"),
			allowed: []string{"nft/kernel", "watch", "cmd", "conntrack", "internal/health", "internal/healthport", "internal/metrics", "internal/hostaddr", "internal/testnet", "internal/aptget", "internal/child", "internal/cluster", "internal/nftcmd", "internal/nftmonitor", "internal/demo", "internal/scenario/stage", "bench"},
		},
	}
}

func TestImports(t *testing.T) {
	for file, parsed := range goFiles(t, parser.ImportsOnly) {
		for _, r := range rules() {
			if !r.binds(file) {
				continue
			}
			for _, i := range parsed.Imports {
				if p := strings.Trim(i.Path.Value, `"`); r.matches(p) {
					t.Errorf("%s imports %s: %s", file, p, r.name)
				}
			}
		}
	}
}

// TestNoClock: the core takes the time as an argument where it needs one.
func TestNoClock(t *testing.T) {
	for file, parsed := range goFiles(t, parser.SkipObjectResolution) {
		if !core(file) || strings.HasSuffix(file, "_test.go") {
			continue
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := s.X.(*ast.Ident)
			if ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}, s.Sel.Name) {
				t.Errorf("%s uses time.%s: the core has no clock", file, s.Sel.Name)
			}
			return true
		})
	}
}

// TestPackageDocs: each package has one package comment, which says what it is
// for in more than a few words.
func TestPackageDocs(t *testing.T) {
	docs := map[string][]string{}
	for file, parsed := range goFiles(t, parser.ParseComments|parser.PackageClauseOnly) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		dir := path.Dir(file)
		docs[dir] = append(docs[dir], parsed.Doc.Text())
	}
	for dir, texts := range docs {
		texts = slices.DeleteFunc(texts, func(s string) bool { return s == "" })
		if len(texts) != 1 || len(strings.Fields(texts[0])) < 12 {
			t.Errorf("%s: %d package comments, want one of at least a dozen words", dir, len(texts))
		}
	}
}

func TestFileLength(t *testing.T) {
	for file := range goFiles(t, parser.PackageClauseOnly) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, more than %d", file, n, maxLines)
		}
	}
}

// TestNoGlobals: package-level variables are for sentinel errors and for what
// the compiler makes of an embed directive.
func TestNoGlobals(t *testing.T) {
	for file, parsed := range goFiles(t, parser.ParseComments) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, d := range parsed.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				for i, n := range v.Names {
					if n.Name != "_" && !sentinel(v, i) && !embedded(g, v) {
						t.Errorf("%s: package variable %s", file, n.Name)
					}
				}
			}
		}
	}
}

// sentinel says whether a variable is an error made on the spot.
func sentinel(v *ast.ValueSpec, i int) bool {
	if i >= len(v.Values) || !strings.HasPrefix(strings.ToLower(v.Names[i].Name), "err") {
		return false
	}
	call, ok := v.Values[i].(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && (f.Sel.Name == "New" || f.Sel.Name == "Errorf")
}

func embedded(g *ast.GenDecl, v *ast.ValueSpec) bool {
	for _, c := range []*ast.CommentGroup{g.Doc, v.Doc} {
		if c != nil && strings.Contains(c.List[len(c.List)-1].Text, "//go:embed") {
			return true
		}
	}
	return false
}

// goFiles parses the module's own Go files, by their paths from its root.
func goFiles(t *testing.T, mode parser.Mode) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata" || d.Name() == "bin"):
			return filepath.SkipDir
		case d.IsDir() && p == filepath.Join("hack", "tools"):
			return filepath.SkipDir
		case !strings.HasSuffix(p, ".go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, mode)
		files[filepath.ToSlash(p)] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
