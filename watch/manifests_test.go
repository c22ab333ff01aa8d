package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"nftproxy/model/service"
	"nftproxy/test/check"
	"nftproxy/test/gen"
)

// patience is how long a test waits for an expected event. No test passes because this
// time has run out.
const patience = time.Minute

// follower runs a watcher on manifests and receives its snapshots.
type follower struct {
	*testing.T
	out      *service.Mailbox
	reported chan Problem
	last     service.Snapshot
}

func follow(t *testing.T, path string) *follower {
	t.Helper()
	return followWith(t, path, Options{})
}

func followWith(t *testing.T, path string, opts Options) *follower {
	t.Helper()
	return followAt(t, path, opts, time.Now)
}

// followAt is followWith with a clock that tells how long a file has been gone.
func followAt(t *testing.T, path string, opts Options, now func() time.Time) *follower {
	t.Helper()
	f := &follower{T: t, out: service.NewMailbox(), reported: make(chan Problem, 1000)}
	opts.Node, opts.Report = "node-0", func(p Problem) { f.reported <- p }
	w := NewWatcher(opts, f.out)
	w.now = now
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.RunManifests(ctx, path) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("RunManifests: %v", err)
		}
	})
	return f
}

// await takes snapshots until one has exactly the given cluster IPs.
func (f *follower) await(want ...string) {
	f.Helper()
	timeout := time.After(patience)
	for !slices.Equal(f.addresses(), want) {
		select {
		case <-f.out.C():
			if u, ok := f.out.Take(); ok {
				f.last = u.Snapshot
			}
		case <-timeout:
			f.Fatalf("cluster IPs are %v, want %v", f.addresses(), want)
		}
	}
}

func (f *follower) addresses() []string {
	if f.last.Node == nil {
		return []string{"nothing yet"}
	}
	var list []string
	for _, s := range f.last.Services.All() {
		for _, a := range s.ClusterIPs {
			list = append(list, a.String())
		}
	}
	return list
}

// awaitProblem waits for a problem whose text contains want.
func (f *follower) awaitProblem(want string) Problem {
	f.Helper()
	timeout := time.After(patience)
	for {
		select {
		case p := <-f.reported:
			if strings.Contains(p.Error(), want) {
				return p
			}
		case <-timeout:
			f.Fatalf("no problem like %q", want)
		}
	}
}

func manifest(name, ip string) []byte {
	return fmt.Appendf(nil, "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: %s, ports: [{port: "+
		"80}]}\n", name, ip)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestUTF16: both documents of a file count in each encoding with a mark that editors write.
func TestUTF16(t *testing.T) {
	text := string(manifest("a", "10.96.0.1")) + "---\n" + string(manifest("b", "10.96.0.2"))
	little, big := []byte{0xff, 0xfe}, []byte{0xfe, 0xff}
	for _, unit := range utf16.Encode([]rune(text)) {
		little, big = binary.LittleEndian.AppendUint16(little, unit), binary.BigEndian.AppendUint16(big, unit)
	}
	for _, data := range [][]byte{little, big, []byte("\ufeff" + text), []byte("\ufeff---\n" + text)} {
		f := readManifest("a.yaml", data, [32]byte{}, &manifestFile{})
		if len(f.objects) != 2 || len(f.problems) > 0 {
			t.Errorf("%q: %d objects, problems %v", data[:8], len(f.objects), f.problems)
		}
	}
}

func TestFollowDirectory(t *testing.T) {
	dir := t.TempDir()
	f := follow(t, dir)
	f.await()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.json")

	write(t, a, manifest("a", "10.96.0.1"))
	f.await("10.96.0.1")
	write(t, b, []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"b"},"spec":{"clusterIP":"10.96.0.2"}}`))
	f.await("10.96.0.1", "10.96.0.2")

	// Written in place.
	write(t, a, manifest("a", "10.96.0.11"))
	f.await("10.96.0.11", "10.96.0.2")

	// Renamed over, as careful editors do.
	write(t, filepath.Join(dir, "a.yaml.new"), manifest("a", "10.96.0.12"))
	must(t, os.Rename(filepath.Join(dir, "a.yaml.new"), a))
	f.await("10.96.0.12", "10.96.0.2")

	// Moved in from another directory, hard-linked, symlinked.
	elsewhere := t.TempDir()
	write(t, filepath.Join(elsewhere, "c"), manifest("c", "10.96.0.3"))
	must(t, os.Rename(filepath.Join(elsewhere, "c"), filepath.Join(dir, "c.yml")))
	f.await("10.96.0.12", "10.96.0.2", "10.96.0.3")
	write(t, filepath.Join(elsewhere, "d"), manifest("d", "10.96.0.4"))
	must(t, os.Link(filepath.Join(elsewhere, "d"), filepath.Join(dir, "d.yaml")))
	f.await("10.96.0.12", "10.96.0.2", "10.96.0.3", "10.96.0.4")
	write(t, filepath.Join(elsewhere, "e"), manifest("e", "10.96.0.5"))
	must(t, os.Symlink(filepath.Join(elsewhere, "e"), filepath.Join(dir, "e.yaml")))
	f.await("10.96.0.12", "10.96.0.2", "10.96.0.3", "10.96.0.4", "10.96.0.5")

	// The target of a symbolic link changes, in a directory of its own.
	write(t, filepath.Join(elsewhere, "e"), manifest("e", "10.96.0.55"))
	f.await("10.96.0.12", "10.96.0.2", "10.96.0.3", "10.96.0.4", "10.96.0.55")
	must(t, os.Remove(filepath.Join(elsewhere, "e")))
	f.awaitProblem("e.yaml: no such file or directory") // The link is still there, so its last content counts.

	must(t, os.Remove(filepath.Join(dir, "e.yaml")))
	must(t, os.Rename(a, filepath.Join(dir, "a.txt")))
	must(t, os.Remove(b))
	f.await("10.96.0.3", "10.96.0.4")
}

// TestFollowConfigMap swaps ..data as the kubelet does: it makes a new directory and a
// new link, renames that over the old link, and removes the old directory.
func TestFollowConfigMap(t *testing.T) {
	dir := t.TempDir()
	publish := func(version string, files map[string][]byte) {
		must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		for name, data := range files {
			write(t, filepath.Join(dir, version, name), data)
		}
		must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	publish("..2026_1", map[string][]byte{"a.yaml": manifest("a", "10.96.0.1"), "b.yaml": manifest("b", "10.96.0.2")})
	for _, name := range []string{"a.yaml", "b.yaml"} {
		must(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	}
	f := follow(t, dir)
	f.await("10.96.0.1", "10.96.0.2")
	publish("..2026_2", map[string][]byte{"a.yaml": manifest("a", "10.96.0.11"), "b.yaml": manifest("b", "10.96.0.12")})
	f.await("10.96.0.11", "10.96.0.12")
	must(t, os.RemoveAll(filepath.Join(dir, "..2026_1")))
	publish("..2026_3", map[string][]byte{"a.yaml": manifest("a", "10.96.0.21"), "b.yaml": manifest("b", "10.96.0.12")})
	f.await("10.96.0.21", "10.96.0.12")
}

// TestFollowSlowWriter: a file that is truncated, or only half written, keeps its last
// content. Other files are followed.
func TestFollowSlowWriter(t *testing.T) {
	dir := t.TempDir()
	slow, other := filepath.Join(dir, "slow.yaml"), filepath.Join(dir, "other.yaml")
	text := append(append(manifest("slow-1", "10.96.0.1"), "---\n"...), manifest("slow-2", "10.96.0.2")...)
	write(t, slow, text)
	f := follow(t, dir)
	f.await("10.96.0.1", "10.96.0.2")

	file, err := os.OpenFile(slow, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	write(t, other, manifest("other", "10.96.0.9"))
	f.await("10.96.0.9", "10.96.0.1", "10.96.0.2")
	_, err = file.Write(manifest("slow-1", "10.96.0.11"))
	must(t, err)
	write(t, other, manifest("other", "10.96.0.8"))
	f.await("10.96.0.8", "10.96.0.1", "10.96.0.2")
	_, err = file.WriteString("---\n" + string(manifest("slow-2", "10.96.0.12")))
	must(t, err)
	must(t, file.Close())
	f.await("10.96.0.8", "10.96.0.11", "10.96.0.12")

	// The same with a file that is new.
	file, err = os.Create(filepath.Join(dir, "new.yaml"))
	must(t, err)
	_, err = file.WriteString("apiVersion: v1\nkind: Serv")
	must(t, err)
	write(t, other, manifest("other", "10.96.0.7"))
	f.await("10.96.0.7", "10.96.0.11", "10.96.0.12")
	must(t, file.Truncate(0))
	_, err = file.WriteAt(manifest("new", "10.96.0.3"), 0)
	must(t, err)
	must(t, file.Close())
	f.await("10.96.0.3", "10.96.0.7", "10.96.0.11", "10.96.0.12")
	select {
	case p := <-f.reported:
		if !errors.Is(p, ErrNoNode) {
			t.Errorf("a half-written file was read: %v", p)
		}
	default:
	}
}

// TestFollowBroken: the problem is reported once, and the last good content stays.
func TestFollowBroken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, manifest("a", "10.96.0.1"))
	f := follow(t, dir)
	f.await("10.96.0.1")
	write(t, path, append(manifest("b", "10.96.0.2"), "---\nkind: Service\nmetadata:\n  name: a\n : x\n"...))
	p := f.awaitProblem("yaml:")
	if want := path + " document 2 (line 6)"; p.Source != want || p.Object.String() != "Service default/a" ||
		!strings.Contains(p.Error(), "line 8") {
		t.Errorf("problem of %q with %q: %v\nwant %q", p.Source, p.Object, p, want)
	}
	f.await("10.96.0.1", "10.96.0.2")
	write(t, filepath.Join(dir, "c.yaml"), manifest("c", "10.96.0.3"))
	f.await("10.96.0.1", "10.96.0.2", "10.96.0.3")
	write(t, path, append(manifest("b", "10.96.0.2"), "---\n"...))
	f.await("10.96.0.2", "10.96.0.3")
	for {
		select {
		case p := <-f.reported:
			t.Errorf("reported again: %v", p)
			continue
		default:
		}
		break
	}
}

// TestFollowFile: one file is replaced in every way, and is gone for a while, with its
// directory too.
func TestFollowFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sub")
	must(t, os.Mkdir(dir, 0o755))
	path := filepath.Join(dir, "only")
	write(t, path, manifest("a", "10.96.0.1"))
	write(t, filepath.Join(dir, "beside.yaml"), manifest("b", "10.96.0.99"))
	f := follow(t, path)
	f.await("10.96.0.1")
	write(t, path, manifest("a", "10.96.0.2"))
	f.await("10.96.0.2")
	must(t, os.Remove(path))
	f.awaitProblem("no such file or directory")
	write(t, path, manifest("a", "10.96.0.3"))
	f.await("10.96.0.3")
	must(t, os.Rename(dir, dir+"-away"))
	f.awaitProblem("no such file or directory")
	must(t, os.Mkdir(dir, 0o755))
	write(t, path, manifest("a", "10.96.0.4"))
	f.await("10.96.0.4")
}

// TestFollowRecreatedDirectory: the directory itself goes and comes back. Meanwhile the
// last content counts.
func TestFollowRecreatedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	must(t, os.Mkdir(dir, 0o755))
	write(t, filepath.Join(dir, "a.yaml"), manifest("a", "10.96.0.1"))
	f := follow(t, dir)
	f.await("10.96.0.1")
	must(t, os.Rename(dir, dir+".old"))
	f.awaitProblem("no such file or directory")
	must(t, os.Mkdir(dir, 0o755))
	write(t, filepath.Join(dir, "b.yaml"), manifest("b", "10.96.0.2"))
	f.await("10.96.0.2")
	write(t, filepath.Join(dir, "b.yaml"), manifest("b", "10.96.0.3"))
	f.await("10.96.0.3")
}

func TestManifestsStart(t *testing.T) {
	w := NewWatcher(Options{Node: "node-0"}, service.NewMailbox())
	err := w.RunManifests(context.Background(), filepath.Join(t.TempDir(), "none"))
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "follow manifests: ") {
		t.Fatalf("a path that does not exist: %v", err)
	}
}

// TestUnchangedDocumentIsNotReadAgain: an edit of one document leaves the objects of the
// other document as they are, even if these move within the file.
func TestUnchangedDocumentIsNotReadAgain(t *testing.T) {
	old := readManifest("f", append(manifest("a", "10.96.0.1"), "---\n"+string(manifest("b", "10.96.0.2"))...),
		[32]byte{1}, &manifestFile{})
	now := readManifest("f", append(manifest("c", "10.96.0.3"), "---\n"+string(manifest("a", "10.96.0.1"))...),
		[32]byte{2}, old)
	if len(now.objects) != 2 || now.objects[1].value != old.objects[0].value {
		t.Fatalf("document was converted again: %v, %v", old.objects, now.objects)
	}
}

// TestManyBrokenDocuments: a problem has the line of the file. The work for many of them grows with their number, and
// not with its square: the parser allocates what it reads, and other work on the machine allocates nothing here.
func TestManyBrokenDocuments(t *testing.T) {
	file := func(n int) []byte {
		return []byte(strings.Repeat("a: [\n---\nkind: x\nkind: y\n---\n"+strings.Repeat("\n", 195), n))
	}
	read := func(data []byte) *manifestFile { return readManifest("f", data, [32]byte{1}, &manifestFile{}) }
	texts := ""
	for _, p := range read(file(2)).problems {
		texts += p.Error() + "\n"
	}
	for _, want := range []string{"(line 201): yaml: line 201: did not find", `(line 203): yaml: unmarshal errors: line ` +
		`204: key "kind" already set`} {
		if !strings.Contains(texts, want) {
			t.Errorf("no problem says %q:\n%s", want, texts)
		}
	}
	few, many := file(64), file(1024)
	bytesFew, bytesMany := check.Allocated(func() { read(few) }), check.Allocated(func() { read(many) })
	t.Logf("128 documents: %d bytes; 2,048: %d", bytesFew, bytesMany)
	if bytesMany > 24*bytesFew {
		t.Errorf("128 documents allocate %d bytes, and 2,048 allocate %d", bytesFew, bytesMany)
	}
}

// FuzzReadManifest: no input makes the reader panic, every reported line is in the file,
// and a document is read whatever stands before it.
func FuzzReadManifest(f *testing.F) {
	f.Add(manifest("a", "10.96.0.1"))
	f.Add([]byte("---\n---\n...\n--- {\n"))
	f.Add([]byte("{\"kind\": \"List\", \"items\": [{}]} {\n\n} x"))
	f.Add([]byte("a: &a [*a, *a]\nb: !!binary x\nkind: List\nitems: 3"))
	f.Add(
		[]byte("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\nports: [{}]\nendpoints: [{}]"))
	for _, golden := range []string{"bad-slice", "bad-service", "manifests-broken"} {
		data, err := os.ReadFile("testdata/" + golden + ".txtar")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, c := range splitDocuments(data) {
			if c.line < 1 || c.line > strings.Count(string(data), "\n")+1 {
				t.Fatalf("line %d of %q", c.line, data)
			}
		}
		var file *manifestFile
		check.Bounded(t, 16<<20+1<<13*uint64(len(data)), func() {
			file = readManifest("f", slices.Concat(data, []byte("\n---\n"), manifest("last-one", "10.96.0.77")), [32]byte{1},
				&manifestFile{})
		})
		if !slices.ContainsFunc(file.objects, func(e manifestObject) bool { return e.key.Name == "last-one" }) {
			t.Fatalf("the document after it is lost; problems: %v", file.problems)
		}
		ix := newIndex("node-0")
		for _, e := range file.objects {
			e.value.put(ix)
		}
		text := ix.flush().String()
		if _, err := gen.ReadSnapshot(strings.NewReader(text)); err != nil {
			t.Fatalf("%v, of:\n%s", err, text)
		}
		for _, p := range append(file.problems, ix.takeProblems()...) {
			if p.Error() == "" {
				t.Fatal("a problem without words")
			}
		}
	})
}
