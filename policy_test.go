// Package nftproxy_test holds the rules of the design. ARCHITECTURE.md states
// the layers, and docs/internals/packages.md the packages; the tests here hold the code to these pages.
package nftproxy_test

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxWidth is the widest line of Go, in characters. A tab is one.
const maxWidth = 120

// uses lists what a package can use outside the process, in the words of the
// column "Uses directly" in docs/internals/packages.md, with the imports that stand for each.
// An import that ends in a slash stands for all below it. The clock is told by
// calls, since package time has durations too.
func uses() map[string][]string {
	return map[string][]string{
		"Kubernetes": {"k8s.io/", "sigs.k8s.io/"},
		"kernel": {"github.com/google/nftables", "github.com/mdlayher/", "github.com/ti-mo/",
			"github.com/vishvananda/", "golang.org/x/sys/", "syscall"},
		"files":          {"io/fs", "os"},
		"sockets":        {"net", "net/http"},
		"processes":      {"os/exec"},
		"log":            {"log", "log/slog"},
		"random numbers": {"crypto/rand", "math/rand", "math/rand/v2"},
		"clock": {"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.Sleep",
			"time.NewTimer", "time.NewTicker", "time.Tick"},
	}
}

// TestLayers: a package imports from the layers below its own, never from a
// layer above, and from its own layer only within its own folder. The test
// apparatus stands beside the layers: the commands for people who try and
// measure (demo, bench) and all tests may use it.
func TestLayers(t *testing.T) {
	design := readDesign(t)
	for file, parsed := range goFiles(t, parser.ImportsOnly) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		from := topFolder(file)
		if _, known := design.layers[from]; !known {
			t.Errorf("%s: ARCHITECTURE.md has no layer with the folder %s", file, from)
		}
		for _, p := range importPaths(parsed) {
			own, inside := strings.CutPrefix(p, "nftproxy/")
			if to := topFolder(own); inside && !design.mayImport(from, to) {
				t.Errorf("%s imports %s: %s (%s) must not use %s (%s)", file, p, from, design.layers[from], to, design.layers[to])
			}
		}
	}
}

// TestArrowsInModel: packages of the model that ARCHITECTURE.md joins by arrows import only what stands before them.
func TestArrowsInModel(t *testing.T) {
	_, arrows, _ := strings.Cut(section(t, "ARCHITECTURE.md", "## The layers"), "with the bounds: ")
	arrows, _, _ = strings.Cut(arrows, ".")
	levels := map[string]int{}
	for level, names := range strings.Split(arrows, " <- ") {
		for name := range strings.SplitSeq(names, ", ") {
			levels["model/"+strings.Trim(name, "`")] = level
		}
	}
	imports := 0
	for file, parsed := range goFiles(t, parser.ImportsOnly) {
		from, arranged := levels[path.Dir(file)]
		if !arranged || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, p := range importPaths(parsed) {
			if to, is := levels[strings.TrimPrefix(p, "nftproxy/")]; is {
				imports++
				if to >= from {
					t.Errorf("%s imports %s, which does not stand before it", file, p)
				}
			}
		}
	}
	if len(levels) < 4 || imports < 5 {
		t.Fatalf("%d packages and %d imports: nothing was tested", len(levels), imports)
	}
}

// TestPackages: each package has a row in the table of packages, each row has its
// package, and the files of a package use just what its row says.
func TestPackages(t *testing.T) {
	design := readDesign(t)
	used := map[string]map[string]string{} // by package and word, an example
	for file, parsed := range goFiles(t, parser.SkipObjectResolution) {
		pkg := path.Dir(file)
		if used[pkg] == nil {
			used[pkg] = map[string]string{}
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for word, names := range uses() {
			for _, u := range append(importPaths(parsed), clockCalls(parsed)...) {
				if slices.ContainsFunc(names, func(n string) bool {
					return u == n || strings.HasSuffix(n, "/") && strings.HasPrefix(u, n)
				}) {
					used[pkg][word] = file + " has " + u
				}
			}
		}
	}
	delete(used, ".") // these rules
	for pkg, words := range used {
		allowed, listed := design.packages[pkg]
		if !listed {
			t.Errorf("docs/internals/packages.md has no row for the package %s", pkg)
		}
		for word, example := range words {
			if !slices.Contains(allowed, word) {
				t.Errorf("%s: the row of the package %s in docs/internals/packages.md does not have: %s", example, pkg, word)
			}
		}
	}
	for pkg, words := range design.packages {
		if used[pkg] == nil {
			t.Errorf("docs/internals/packages.md has a row for %s, which is no package", pkg)
		}
		for _, word := range words {
			if uses()[word] == nil {
				t.Errorf("docs/internals/packages.md: %q of the package %s is none of the words for what can be used", word, pkg)
			} else if used[pkg][word] == "" {
				t.Errorf("docs/internals/packages.md says that %s uses: %s. It does not", pkg, word)
			}
		}
	}
}

// TestNoKubernetesRepository: the module k8s.io/kubernetes is for hack/tools.
func TestNoKubernetesRepository(t *testing.T) {
	for file, parsed := range goFiles(t, parser.ImportsOnly) {
		for _, p := range importPaths(parsed) {
			if p == "k8s.io/kubernetes" || strings.HasPrefix(p, "k8s.io/kubernetes/") {
				t.Errorf("%s imports %s", file, p)
			}
		}
	}
}

// design is what ARCHITECTURE.md and docs/internals/packages.md say of the structure.
type design struct {
	// order lists the layers, the highest first; layers tells that of each top
	// folder.
	order  []string
	layers map[string]string
	// packages tells what each package uses directly.
	packages map[string][]string
}

// apparatus is the folder, and the layer, beside the others.
const apparatus = "test"

// readDesign reads the picture of the layers (a line each: the name and the
// folders, with two spaces or more between them) and the table of packages.
func readDesign(t *testing.T) design {
	t.Helper()
	d := design{layers: map[string]string{}, packages: map[string][]string{}}
	_, picture, _ := strings.Cut(section(t, "ARCHITECTURE.md", "## The layers"), "```\n")
	picture, _, _ = strings.Cut(picture, "```")
	for line := range strings.Lines(picture) {
		name, rest, _ := strings.Cut(line, " ")
		folders, _, _ := strings.Cut(rest, "-- ")
		d.order = append(d.order, name)
		for _, folder := range strings.Fields(folders) {
			d.layers[folder] = name
		}
	}
	for line := range strings.Lines(section(t, "docs/internals/packages.md", "## The packages")) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		pkg := strings.Trim(cells[1], " `")
		d.packages[pkg] = nil
		if words := strings.TrimSpace(cells[3]); words != "nothing" {
			d.packages[pkg] = strings.Split(words, ", ")
		}
	}
	if len(d.order) < 4 || len(d.packages) < 20 {
		t.Fatalf("the pages have %d layers and %d packages", len(d.order), len(d.packages))
	}
	return d
}

// section is the text of a page from a heading to the next of its level.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no %q", page, heading)
	}
	after, _, _ = strings.Cut(after, "\n## ")
	return after
}

// mayImport says whether code in one top folder may import what is in another.
func (d *design) mayImport(from, to string) bool {
	switch {
	case from == to:
		return true
	case to == apparatus:
		return from == "demo" || from == "bench"
	case from == apparatus:
		return d.level(to) > 0
	}
	return d.level(from) < d.level(to)
}

// level is 0 for the highest layer.
func (d *design) level(folder string) int { return slices.Index(d.order, d.layers[folder]) }

func topFolder(p string) string {
	top, _, _ := strings.Cut(p, "/")
	return top
}

func importPaths(f *ast.File) []string {
	var paths []string
	for _, i := range f.Imports {
		paths = append(paths, strings.Trim(i.Path.Value, `"`))
	}
	return paths
}

// clockCalls lists what the file has of package time, as "time.Now".
func clockCalls(f *ast.File) []string {
	var calls []string
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
				calls = append(calls, "time."+s.Sel.Name)
			}
		}
		return true
	})
	return calls
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

// TestLineWidth: no line of Go is wider than maxWidth, but for text of other programs in raw strings over several
// lines.
func TestLineWidth(t *testing.T) {
	for file := range goFiles(t, parser.ImportsOnly) {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := rawLines(source)
		for i, line := range strings.Split(string(source), "\n") {
			if n := utf8.RuneCountInString(line); n > maxWidth && !text[i+1] {
				t.Errorf("%s:%d has %d characters, more than %d", file, i+1, n, maxWidth)
			}
		}
	}
}

// rawLines are the lines on which a raw string over several lines stands, from 1.
func rawLines(source []byte) map[int]bool {
	file := token.NewFileSet().AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return lines
		}
		if more := strings.Count(literal, "\n"); tok == token.STRING && more > 0 {
			for i := range more + 1 {
				lines[file.Line(pos)+i] = true
			}
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

// isModule says whether a folder is the root of another module.
func isModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil
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
		case d.IsDir() && p != "." && isModule(p):
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
