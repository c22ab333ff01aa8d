package watch

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// names is a set of file names in a directory; nil stands for all of them.
type names map[string]bool

// notifier tells when files in some directories have changed. It is inotify
// itself and not a portable library over it, since those do not tell when a
// writer has closed a file (IN_CLOSE_WRITE, inotify(7)): without that a file
// that is truncated and then written is read when it is empty or half there.
type notifier struct {
	file *os.File
	// fd is file's. Asking file for it would make its reads block a thread.
	fd int
	// events carries what has been read, in order; closed at the end.
	events chan []event
	// dirs are by their watch descriptors.
	dirs map[uint32]directory
	// writing are the files that somebody has changed and not closed yet.
	writing map[string]bool
}

type directory struct {
	path  string
	names names
}

// event is one of inotify's.
type event struct {
	wd   uint32
	mask uint32
	name string
}

const (
	// started means that a file's contents are in flux.
	started = unix.IN_MODIFY
	// done means that something is there, or gone, for good.
	done     = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ATTRIB
	selfGone = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	followed = started | done | selfGone | unix.IN_CREATE | unix.IN_ONLYDIR
)

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	n := &notifier{
		file:    os.NewFile(uintptr(fd), "inotify"),
		fd:      fd,
		events:  make(chan []event),
		dirs:    map[uint32]directory{},
		writing: map[string]bool{},
	}
	go n.read()
	return n, nil
}

// close ends the reading; events is closed afterwards.
func (n *notifier) close() {
	n.file.Close()
	for range n.events { // Let go of a reader that waits with events.
	}
}

func (n *notifier) read() {
	defer close(n.events)
	buffer := make([]byte, 64<<10)
	for {
		size, err := n.file.Read(buffer)
		if err != nil {
			return // Closed: nothing else makes the read of an inotify descriptor fail.
		}
		n.events <- parseEvents(buffer[:size])
	}
}

func parseEvents(data []byte) []event {
	const head = int(unsafe.Sizeof(unix.InotifyEvent{}))
	var list []event
	for len(data) >= head {
		end := head + int(binary.NativeEndian.Uint32(data[12:]))
		name, _, _ := strings.Cut(string(data[head:end]), "\x00")
		list = append(list, event{binary.NativeEndian.Uint32(data), binary.NativeEndian.Uint32(data[4:]), name})
		data = data[end:]
	}
	return list
}

// follow makes want, names by directory, all that is followed, and says
// whether that is anything new: if so, it may have changed before.
func (n *notifier) follow(want map[string]names) (bool, error) {
	old := maps.Clone(n.dirs)
	clear(n.dirs)
	added := false
	for path, names := range want {
		wd, err := unix.InotifyAddWatch(n.fd, path, followed)
		switch err {
		case nil:
		case unix.ENOENT, unix.ENOTDIR, unix.EACCES:
			continue // Its parent tells when that changes.
		default:
			return false, fmt.Errorf("watch directory %s: %w", path, err)
		}
		if _, known := old[uint32(wd)]; !known {
			added = true
		}
		n.dirs[uint32(wd)] = directory{path, names}
	}
	for wd := range old {
		if _, still := n.dirs[wd]; !still {
			// It fails for a directory that is gone, whose watch is gone too.
			_, _ = unix.InotifyRmWatch(n.fd, wd)
		}
	}
	return added, nil
}

// handle keeps account of files that are being written, and says whether
// anything is worth another look.
func (n *notifier) handle(events []event) bool {
	look := false
	for _, e := range events {
		if e.mask&unix.IN_Q_OVERFLOW != 0 {
			clear(n.writing)
			look = true
			continue
		}
		dir, known := n.dirs[e.wd]
		if !known || e.name != "" && dir.names != nil && !dir.names[e.name] {
			continue
		}
		path := filepath.Join(dir.path, e.name)
		switch {
		case e.mask&unix.IN_ISDIR == 0 && (e.mask&started != 0 || e.mask&unix.IN_CREATE != 0 && beingWritten(path)):
			n.writing[path] = true
		default:
			if e.mask&done != unix.IN_ATTRIB {
				delete(n.writing, path)
			}
			look = true
		}
	}
	return look
}

// beingWritten says of a file that has just come whether it is a new one, which
// its maker is going to close, and not a link, which is there at once.
func beingWritten(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || stat.Nlink == 1
}
