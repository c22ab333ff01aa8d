package watch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"nftproxy/watch/wire"
)

// gonePeriod is how long the objects of a file stay that has gone or become empty. Many programs replace a file in two
// steps: they rename it away, or empty it, and write it again. It is longer than two looks.
const gonePeriod = time.Second

// RunManifests follows the manifests at path, a file or a directory of *.yaml, *.yml and *.json
// files, until ctx ends, and returns nil then. A path that does not exist at the start is an error.
// One that cannot be read is reported, and nothing is published until it can be read. Later the
// last good state stays in force: of path, of a broken document, of a file that cannot be read or
// that another process is writing, and for a second of a removed file.
func (w *Watcher) RunManifests(ctx context.Context, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("follow manifests: %w", err)
	}
	m := &manifests{watcher: w, path: path, current: map[Object]converted{}, loaded: make(chan struct{})}
	w.mu.Lock()
	w.awaited = []awaited{{what: "the manifests at " + path, there: m.loaded}}
	w.mu.Unlock()
	if err := m.look(); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("follow manifests: %w", err)
	}
	w.change(func(ix *index) { ix.manifests = true })
	var running sync.WaitGroup
	running.Go(func() { w.loop(ctx) })
	running.Go(func() {
		select {
		case <-m.loaded:
			w.release(ctx)
		case <-ctx.Done():
		}
	})
	defer running.Wait()
	looks := time.NewTicker(lookPeriod)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-looks.C:
			_ = m.look() // It has reported the error.
		}
	}
}

// manifests are the files at path, as they were read last.
type manifests struct {
	watcher *Watcher
	path    string
	// started says that the files have been read; loaded is closed then.
	started bool
	loaded  chan struct{}
	// files are in the order of their names, as os.ReadDir returns them. submitted are those that the index has; nil
	// after path could not be read.
	files, submitted []*manifestFile
	// current has the objects that the index has, reported the texts of the
	// problems that were reported.
	current  map[Object]converted
	reported map[string]bool
}

// manifestFile is one file and what was read in it.
type manifestFile struct {
	path string
	sum  [sha256.Size]byte
	// state is that before the file was read, last that of the last look.
	state, last fileState
	// gone is when the file went, or became empty; zero for one that is there.
	gone time.Time
	// objects are the file's. The last good versions of objects in broken
	// documents are at the end.
	objects  []manifestObject
	problems []Problem
	// clean are the documents without any problem, by the sum of their text.
	clean map[[sha256.Size]byte]document
}

// look loads the files, and reports what is wrong with path.
func (m *manifests) look() error {
	err := m.load()
	if err == nil && m.submitted != nil && slices.Equal(m.submitted, m.files) {
		return nil // as in nearly each look
	}
	problems := m.problems()
	if err != nil {
		reason := reasonOf(err)
		if !m.started {
			reason = &UnreadableError{reason}
		}
		m.submit(append(problems, Problem{Source: m.path, Err: reason}), m.current)
		m.submitted = nil
		return err
	}
	wanted, duplicates := m.merge()
	m.submit(append(problems, duplicates...), wanted)
	m.started, m.submitted = true, append([]*manifestFile{}, m.files...)
	closeOnce(m.loaded)
	return nil
}

// load reads the files that have changed. An error means that path cannot be read; the files then stay as they are.
func (m *manifests) load() error {
	paths, err := listManifests(m.path)
	if err != nil {
		return err
	}
	var files []*manifestFile
	for _, path := range paths {
		if f := m.file(path); f != nil {
			files = append(files, f)
		}
	}
	m.files = m.keepGone(files, m.watcher.now())
	return nil
}

// keepGone keeps the objects of files that have just gone or become empty. Their place is in the order of the names.
func (m *manifests) keepGone(files []*manifestFile, now time.Time) []*manifestFile {
	at := map[string]int{}
	for i, f := range files {
		at[f.path] = i
	}
	for _, old := range m.files {
		i, there := at[old.path]
		if len(old.objects) == 0 || there && len(files[i].objects)+len(files[i].problems) > 0 {
			continue
		}
		kept := &manifestFile{path: old.path, objects: old.objects, problems: old.problems, gone: old.gone}
		if kept.gone.IsZero() {
			kept.gone = now
		}
		if now.Sub(kept.gone) >= gonePeriod {
			continue
		}
		if there {
			kept.last = files[i].last // the next look reads it again
			files[i] = kept
		} else {
			files = append(files, kept)
		}
	}
	slices.SortFunc(files, func(a, b *manifestFile) int { return strings.Compare(a.path, b.path) })
	return files
}

// file reads one file, if it has changed since it was read, but not since the last look, and nobody is writing it. At
// the start it reads all files, and the next look reads them again. It returns nil where there is none.
func (m *manifests) file(path string) *manifestFile {
	old := &manifestFile{path: path}
	if at, found := slices.BinarySearchFunc(m.files, path, func(f *manifestFile, path string) int {
		return strings.Compare(f.path, path)
	}); found {
		old = m.files[at]
	}
	state := stateOf(path)
	if state == old.state {
		return old
	}
	if m.started && (state != old.last || beingWritten(path)) {
		waiting := *old
		waiting.last = state
		return &waiting
	}
	data, err := os.ReadFile(path)
	if err != nil {
		if _, gone := os.Lstat(path); errors.Is(gone, fs.ErrNotExist) {
			return nil
		}
		// The sum stays empty: the next read that succeeds counts as a change.
		return &manifestFile{path: path, state: state, last: state, objects: old.objects,
			problems: []Problem{{Source: path, Err: reasonOf(err)}}}
	}
	sum := sha256.Sum256(data)
	if sum == old.sum {
		same := *old
		same.state, same.last, same.gone = state, state, time.Time{}
		return &same
	}
	f := readManifest(path, data, sum, old)
	if f.last = state; m.started {
		f.state = state
	}
	return f
}

// readManifest reads the documents of a file. A document that is equal to one in old
// keeps that one's objects.
func readManifest(path string, data []byte, sum [sha256.Size]byte, old *manifestFile) *manifestFile {
	f := &manifestFile{path: path, sum: sum, clean: map[[sha256.Size]byte]document{}}
	data = inUTF8(data)
	good, broken := map[Object]bool{}, map[Object]bool{}
	scheme := sync.OnceValue(wire.Scheme)
	for i, c := range splitDocuments(data) {
		source := fmt.Sprintf("%s document %d (line %d)", path, i+1, c.line)
		sum := sha256.Sum256(c.text)
		d, known := old.clean[sum]
		if !known {
			d = c.read(scheme)
		}
		clean := len(d.problems) == 0
		for i := range d.problems {
			d.problems[i].Source = source
		}
		f.problems = append(f.problems, d.problems...)
		for _, o := range d.objects {
			clean = setSource(o.value, source) && clean
			o.source = source
			f.objects = append(f.objects, o)
			good[o.key] = true
		}
		for _, key := range d.broken {
			broken[key] = true
		}
		if clean {
			f.clean[sum] = d
		}
	}
	for _, e := range old.objects {
		// A broken document without kind and name may be any object of old that is
		// missing now.
		if !good[e.key] && (broken[e.key] || broken[Object{}]) {
			f.objects = append(f.objects, e)
		}
	}
	return f
}

// setSource writes the source into a converted object's problems. It returns whether
// the object has no problem.
func setSource(object converted, source string) (clean bool) {
	problems := object.meta().problems
	for i := range problems {
		problems[i].Source = source
	}
	return len(problems) == 0
}

// problems returns those of all files.
func (m *manifests) problems() []Problem {
	var list []Problem
	for _, f := range m.files {
		list = append(list, f.problems...)
	}
	return list
}

// merge puts the files together. Of two objects of one name the first counts, and one of a file that has gone only
// where there is no other.
func (m *manifests) merge() (map[Object]converted, []Problem) {
	wanted := map[Object]converted{}
	sources := map[Object]string{}
	var problems []Problem
	inOrder := slices.Clone(m.files)
	slices.SortStableFunc(inOrder, func(a, b *manifestFile) int { return a.gone.Compare(b.gone) })
	for _, f := range inOrder {
		for _, e := range f.objects {
			if _, there := wanted[e.key]; there {
				if !f.gone.IsZero() {
					continue
				}
				problems = append(problems, Problem{
					Source: e.source, Object: e.key,
					Err: fmt.Errorf("ignored: it is defined in %s", sources[e.key]),
				})
				continue
			}
			wanted[e.key], sources[e.key] = e.value, e.source
		}
	}
	return wanted, problems
}

// submit puts the objects that differ into the index, in one step, and reports the
// new problems.
func (m *manifests) submit(problems []Problem, wanted map[Object]converted) {
	reported := map[string]bool{}
	var fresh []Problem
	for _, p := range problems {
		text := p.Error()
		if !m.reported[text] && !reported[text] {
			fresh = append(fresh, p)
		}
		reported[text] = true
	}
	m.reported = reported
	if len(fresh) == 0 && maps.Equal(m.current, wanted) {
		return
	}
	now := time.Now()
	m.watcher.change(func(ix *index) {
		ix.problems = append(ix.problems, fresh...)
		var l loss
		if len(wanted) == 0 { // A directory that is not mounted has no files.
			l = lossOf(ix, ix.knownServices())
		} else {
			ix.releaseAll()
		}
		for key, object := range m.current {
			if _, still := wanted[key]; !still {
				object.drop(ix)
			}
		}
		// In order, so that equal mistakes give equal logs.
		changed := slices.DeleteFunc(slices.Collect(maps.Keys(wanted)), func(key Object) bool {
			return m.current[key] == wanted[key]
		})
		slices.SortFunc(changed, func(a, b Object) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range changed {
			wanted[key].put(ix)
		}
		ix.retain(l, now)
	})
	m.current = wanted
}

// listManifests returns the paths of the manifests at path, a file or a directory.
func listManifests(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		file := filepath.Join(path, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			continue
		}
		files = append(files, file)
	}
	return files, nil
}

// reasonOf returns the reason why a file or directory cannot be read, in words that say what to do.
func reasonOf(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		err = path.Err
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (nftproxy reads files as its user, without root's right to read those of others: change "+
			"owner or mode)", err)
	}
	return err
}
