package watch

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"nftproxy/model/service"
	"nftproxy/test/check"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// TestGolden plays scripts. The parts of an archive are steps, in order:
//
//	apply            YAML documents, as an API server sends them
//	delete           lines of "KIND NAMESPACE/NAME"
//	host-addresses   the node's own addresses, one a line
//	write FILE       a manifest appears or changes
//	remove FILE      the manifest goes away
//	snapshot         the present snapshot, in the model's text form
//	unchanged        the snapshot has not changed: each service has the same pointer
//	problems         the problems that were reported since the last such step
//
// A word after the step's name is for the reader. Problems that no step shows
// fail the test.
func TestGolden(t *testing.T) {
	check.Archives(t, "testdata/*.txtar", *update, func(t *testing.T, archive *txtar.Archive) {
		s := newScript(t)
		for i := range archive.Files {
			s.step(&archive.Files[i])
		}
		if left := s.problems(); left != "" {
			t.Errorf("problems that no step shows:\n%s", left)
		}
	})
}

type script struct {
	*testing.T
	index     *index
	dir       string
	manifests *manifests
	watcher   *Watcher
	last      service.Snapshot
	written   time.Time // of the last file
}

func newScript(t *testing.T) *script {
	w := NewWatcher(Options{Node: "node-0"}, service.NewMailbox())
	s := &script{T: t, index: w.index, dir: t.TempDir(), watcher: w}
	s.manifests = &manifests{watcher: w, path: s.dir, current: map[Object]converted{}, loaded: make(chan struct{})}
	return s
}

func deleteObject(ix *index, kind string, name service.Name) {
	switch kind {
	case "Service":
		ix.deleteService(name)
	case "EndpointSlice":
		ix.deleteSlice(name)
	case "Node":
		ix.deleteNode(name)
	case "ServiceCIDR":
		ix.deleteCIDR(name)
	}
}

func (s *script) step(f *txtar.File) {
	s.Helper()
	step, argument, _ := strings.Cut(f.Name, " ")
	switch step {
	case "apply":
		for _, c := range splitDocuments(f.Data) {
			applyRaw(s.T, s.index, c.text)
		}
	case "delete":
		for line := range strings.Lines(string(f.Data)) {
			kind, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			deleteObject(s.index, kind, service.Name(name))
		}
	case "host-addresses":
		var addrs []netip.Addr
		for line := range strings.Lines(string(f.Data)) {
			addrs = append(addrs, netip.MustParseAddr(strings.TrimSpace(line)))
		}
		s.watcher.SetHostAddresses(addrs, nil)
	case "write":
		argument, _, _ = strings.Cut(argument, " ") // The rest of the text is a note for readers.
		path := filepath.Join(s.dir, argument)
		s.written = s.written.Add(time.Second) // two writes may be closer than the clock of files is fine
		if err := errors.Join(os.WriteFile(path, f.Data, 0o644), os.Chtimes(path, s.written, s.written)); err != nil {
			s.Fatal(err)
		}
		s.load()
	case "remove":
		if err := os.Remove(filepath.Join(s.dir, argument)); err != nil {
			s.Fatal(err)
		}
		s.load()
	case "snapshot":
		s.last = s.index.flush()
		s.compare(f, s.last.String())
	case "unchanged":
		if s.index.flush() != s.last {
			s.Errorf("step %q: another snapshot", f.Name)
		}
	case "problems":
		s.compare(f, s.problems())
	default:
		s.Fatalf("unknown step %q", f.Name)
	}
}

// load reads the files, and does not wait for the end of those that have gone.
func (s *script) load() {
	s.Helper()
	for range 3 { // it is seen, is at rest, and is empty still
		if err := s.manifests.look(); err != nil {
			s.Fatal(err)
		}
		for _, f := range s.manifests.files {
			if !f.gone.IsZero() {
				f.gone = time.Unix(1, 0)
			}
		}
	}
}

func (s *script) problems() string {
	s.index.flush()
	var b strings.Builder
	for _, p := range s.index.takeProblems() {
		fmt.Fprintln(&b, strings.ReplaceAll(p.Error(), s.dir+"/", ""))
	}
	return b.String()
}

func (s *script) compare(f *txtar.File, got string) {
	s.Helper()
	if *update {
		f.Data = []byte(got)
		return
	}
	if diff := cmp.Diff(string(f.Data), got); diff != "" {
		s.Errorf("step %q (-want +got):\n%s", f.Name, diff)
	}
}

// applyRaw decodes one object without filling in defaults.
func applyRaw(t *testing.T, ix *index, text []byte) {
	t.Helper()
	var h header
	decode := func(into any) {
		if err := yaml.Unmarshal(text, into); err != nil {
			t.Fatalf("%v, in:\n%s", err, text)
		}
	}
	decode(&h)
	switch h.Kind {
	case "Service":
		var s corev1.Service
		decode(&s)
		ix.setService(convertService(&s))
	case "EndpointSlice":
		var s discoveryv1.EndpointSlice
		decode(&s)
		ix.setSlice(convertSlice(&s))
	case "Node":
		var n corev1.Node
		decode(&n)
		ix.setNode(convertNode(&n))
	case "ServiceCIDR":
		var c networkingv1.ServiceCIDR
		decode(&c)
		ix.setCIDR(convertCIDR(&c))
	default:
		t.Fatalf("kind %q in:\n%s", h.Kind, bytes.TrimSpace(text))
	}
}
