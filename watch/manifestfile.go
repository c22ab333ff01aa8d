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

// gonePeriod is how long the objects of a file stay that has gone or become empty. Many programs replace a file in two
// steps: they rename it away, or empty it, and write it again. It is longer than two looks.
const gonePeriod = time.Second

// fileState tells whether a file has changed since an earlier look. It is zero for one that was not read.
type fileState struct {
	missing  bool
	dev, ino uint64
	size     int64
	modified time.Time
	changed  syscall.Timespec
}

func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{missing: true}
	}
	s := fileState{size: info.Size(), modified: info.ModTime()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.changed = uint64(stat.Dev), stat.Ino, stat.Ctim
	}
	return s
}

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
		return fmt.Errorf("%w (nftproxy reads files as its user, without root's right to read those of others: change "+
			"owner or mode)", err)
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
