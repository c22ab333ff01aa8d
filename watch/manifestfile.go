package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// lookPeriod is the time between two looks at the files, whatever events say: no event tells of a file system that is
	// mounted over a directory, nor of changes that another host makes on a network's file system. A look takes the
	// state of each file, and reads only those that differ.
	lookPeriod = 10 * time.Second
	// blindPeriod is that time where the kernel does not tell of all changes.
	blindPeriod = 2 * time.Second
	// restPeriod is how long a file that no event told of must rest before it is read: it may be half written.
	restPeriod = 500 * time.Millisecond
	// gonePeriod is how long the objects of a file stay that has gone or become empty. Many programs replace a file in
	// two steps: they rename it away, or empty it, and write it again.
	gonePeriod = time.Second
)

// fileState tells whether a file has changed since the last look. It is zero for a file that is not there.
type fileState struct {
	dev, ino uint64
	size     int64
	modified time.Time
	changed  syscall.Timespec
}

func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}
	}
	s := fileState{size: info.Size(), modified: info.ModTime()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.changed = uint64(stat.Dev), stat.Ino, stat.Ctim
	}
	return s
}

// FollowError says that the kernel does not report all changes of the manifests, and that the
// watcher looks at them periodically.
type FollowError struct {
	// Period is the time between two looks.
	Period time.Duration
	Err    error
}

func (e *FollowError) Error() string {
	return fmt.Sprintf("%v: looking for changes every %s", e.Err, e.Period)
}

// Unwrap returns the kernel's reason.
func (e *FollowError) Unwrap() error { return e.Err }

// UnreadableError says that the manifests cannot be read at the start. The rules stay as they are until that succeeds.
type UnreadableError struct{ Err error }

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%v: trying again; until then the rules stay as they are", e.Err)
}

// Unwrap returns the reason.
func (e *UnreadableError) Unwrap() error { return e.Err }

// reasonOf returns the reason why a file or directory cannot be read, in words that say what to do.
func reasonOf(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		err = path.Err
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (nftproxy reads files as its user, without root's right to read those of others: change owner or mode)", err)
	}
	return err
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
		kept := &manifestFile{path: old.path, state: old.state, objects: old.objects, problems: old.problems, gone: old.gone}
		if kept.gone.IsZero() {
			kept.gone = now
		}
		left := gonePeriod - now.Sub(kept.gone)
		if left <= 0 {
			continue
		}
		m.soon(left)
		if there {
			kept.state = fileState{}
			files[i] = kept
		} else {
			files = append(files, kept)
		}
	}
	slices.SortFunc(files, func(a, b *manifestFile) int { return strings.Compare(a.path, b.path) })
	return files
}

// soon has the next look come after d at the latest.
func (m *manifests) soon(d time.Duration) { m.pause = min(m.pause, d) }
