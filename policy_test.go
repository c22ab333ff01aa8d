// Package nftproxy_test holds the rules of the house. ARCHITECTURE.md states
// the floors and the rooms; the tests here hold the code to that page.
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

// touches lists what a room can touch outside the process, in the words of the
// column "May touch" in ARCHITECTURE.md, with the imports that stand for each.
// An import that ends in a slash stands for all below it. The clock is told by
// calls, since package time has durations too.
func touches() map[string][]string {
	return map[string][]string{
		"Kubernetes":     {"k8s.io/", "sigs.k8s.io/"},
		"kernel":         {"github.com/google/nftables", "github.com/mdlayher/", "github.com/ti-mo/", "github.com/vishvananda/", "golang.org/x/sys/", "syscall"},
		"files":          {"io/fs", "os"},
		"sockets":        {"net", "net/http"},
		"processes":      {"os/exec"},
		"log":            {"log", "log/slog"},
		"random numbers": {"crypto/rand", "math/rand", "math/rand/v2"},
		"clock":          {"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.Sleep", "time.NewTimer", "time.NewTicker", "time.Tick"},
	}
}

// TestFloors: a package imports from the floors below its own, never from a
// floor above, and from its own floor only within its own folder. The test
// apparatus stands beside the house: the commands for people who try and
// measure (demo, bench) and all tests may use it.
func TestFloors(t *testing.T) {
	house := readHouse(t)
	for file, parsed := range goFiles(t, parser.ImportsOnly) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		from := topFolder(file)
		if _, known := house.floors[from]; !known {
			t.Errorf("%s: ARCHITECTURE.md has no floor with the folder %s", file, from)
		}
		for _, p := range importPaths(parsed) {
			own, inside := strings.CutPrefix(p, "nftproxy/")
			if to := topFolder(own); inside && !house.mayImport(from, to) {
				t.Errorf("%s imports %s: %s (%s) must not use %s (%s)", file, p, from, house.floors[from], to, house.floors[to])
			}
		}
	}
}

// TestRooms: each package has a row in the table of rooms, each row has its
// package, and a package touches just what its row says.
func TestRooms(t *testing.T) {
	house := readHouse(t)
	touched := map[string]map[string]string{} // by room and word, an example
	for file, parsed := range goFiles(t, parser.SkipObjectResolution) {
		room := path.Dir(file)
		if touched[room] == nil {
			touched[room] = map[string]string{}
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for word, names := range touches() {
			for _, used := range append(importPaths(parsed), clockCalls(parsed)...) {
				if slices.ContainsFunc(names, func(n string) bool { return used == n || strings.HasSuffix(n, "/") && strings.HasPrefix(used, n) }) {
					touched[room][word] = file + " has " + used
				}
			}
		}
	}
	delete(touched, ".") // these rules
	for room, words := range touched {
		allowed, listed := house.rooms[room]
		if !listed {
			t.Errorf("ARCHITECTURE.md has no row for the room %s", room)
		}
		for word, example := range words {
			if !slices.Contains(allowed, word) {
				t.Errorf("%s: the room %s must not touch: %s", example, room, word)
			}
		}
	}
	for room, words := range house.rooms {
		if touched[room] == nil {
			t.Errorf("ARCHITECTURE.md has a row for %s, which is no package", room)
		}
		for _, word := range words {
			if touches()[word] == nil {
				t.Errorf("ARCHITECTURE.md: %q of the room %s is none of the words for what can be touched", word, room)
			} else if touched[room][word] == "" {
				t.Errorf("ARCHITECTURE.md says that %s may touch: %s. It does not", room, word)
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

// house is what ARCHITECTURE.md says of the structure.
type house struct {
	// order lists the floors, the highest first; floors tells that of each top
	// folder.
	order  []string
	floors map[string]string
	// rooms tells what each package may touch.
	rooms map[string][]string
}

// apparatus is the folder, and the floor, beside the house.
const apparatus = "test"

// readHouse reads the picture of the floors (a line each: the name and the
// folders, with two spaces or more between them) and the table of rooms.
func readHouse(t *testing.T) house {
	t.Helper()
	b, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	h := house{floors: map[string]string{}, rooms: map[string][]string{}}
	_, picture, _ := strings.Cut(section(t, string(b), "## The floors"), "```\n")
	picture, _, _ = strings.Cut(picture, "```")
	for line := range strings.Lines(picture) {
		name, rest, _ := strings.Cut(line, " ")
		folders, _, _ := strings.Cut(rest, "-- ")
		h.order = append(h.order, name)
		for _, folder := range strings.Fields(folders) {
			h.floors[folder] = name
		}
	}
	for line := range strings.Lines(section(t, string(b), "## The rooms")) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		room := strings.Trim(cells[1], " `")
		h.rooms[room] = nil
		if words := strings.TrimSpace(cells[3]); words != "nothing" {
			h.rooms[room] = strings.Split(words, ", ")
		}
	}
	if len(h.order) < 4 || len(h.rooms) < 20 {
		t.Fatalf("ARCHITECTURE.md has %d floors and %d rooms", len(h.order), len(h.rooms))
	}
	return h
}

// section is the text from a heading to the next of its level.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, after, found := strings.Cut(text, "\n"+heading+"\n")
	if !found {
		t.Fatalf("ARCHITECTURE.md has no %q", heading)
	}
	after, _, _ = strings.Cut(after, "\n## ")
	return after
}

// mayImport says whether code in one top folder may import what is in another.
func (h *house) mayImport(from, to string) bool {
	switch {
	case from == to:
		return true
	case to == apparatus:
		return from == "demo" || from == "bench"
	case from == apparatus:
		return h.level(to) > 0
	}
	return h.level(from) < h.level(to)
}

// level is 0 for the highest floor.
func (h *house) level(folder string) int { return slices.Index(h.order, h.floors[folder]) }

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
