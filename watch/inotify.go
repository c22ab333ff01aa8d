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

// notifier reports changes of files in some directories. It uses inotify directly.
// Portable libraries do not report that a writer has closed a file (IN_CLOSE_WRITE,
// inotify(7)): with them, a file that is truncated and then written would be read while
// it is empty or incomplete.
type notifier struct {
	file *os.File
	// fd is file's descriptor. Calling file.Fd would make its reads block a thread.
	fd int
	// events carries the events in order. It is closed at the end.
	events chan []event
	// The keys of dirs are watch descriptors.
	dirs map[uint32]directory
	// writing has the files that a process has changed and not closed yet.
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
	// writeBegun means that a process is writing the file.
	writeBegun = unix.IN_MODIFY
	// writeDone means that a file is complete, or gone.
	writeDone = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ATTRIB
	selfGone  = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	allEvents = writeBegun | writeDone | selfGone | unix.IN_CREATE | unix.IN_ONLYDIR
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
	for range n.events { // The reader may wait to send.
	}
}

func (n *notifier) read() {
	defer close(n.events)
	buffer := make([]byte, 64<<10)
	for {
		size, err := n.file.Read(buffer)
		if err != nil {
			return // The file is closed: the read of an inotify descriptor fails for no other reason.
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

// follow watches exactly the directories in want, each for the names there. It returns
// whether a directory is new: that one may have changed before the watch.
func (n *notifier) follow(want map[string]names) (bool, error) {
	old := maps.Clone(n.dirs)
	clear(n.dirs)
	added := false
	for path, files := range want {
		wd, err := unix.InotifyAddWatch(n.fd, path, allEvents)
		switch err {
		case nil:
		case unix.ENOENT, unix.ENOTDIR, unix.EACCES:
			continue // An event of its parent comes when that changes.
		default:
			return false, fmt.Errorf("watch directory %s: %w", path, err)
		}
		if _, known := old[uint32(wd)]; !known {
			added = true
		}
		n.dirs[uint32(wd)] = directory{path, files}
	}
	for wd := range old {
		if _, still := n.dirs[wd]; !still {
			// It fails for a directory that is gone: its watch is gone, too.
			_, _ = unix.InotifyRmWatch(n.fd, wd)
		}
	}
	return added, nil
}

// handle keeps track of the files that are being written. It returns whether the
// manifests have to be read again.
func (n *notifier) handle(events []event) bool {
	reload := false
	for _, e := range events {
		if e.mask&unix.IN_Q_OVERFLOW != 0 {
			clear(n.writing)
			reload = true
			continue
		}
		dir, known := n.dirs[e.wd]
		if !known || e.name != "" && dir.names != nil && !dir.names[e.name] {
			continue
		}
		path := filepath.Join(dir.path, e.name)
		switch {
		case e.mask&unix.IN_ISDIR == 0 && (e.mask&writeBegun != 0 || e.mask&unix.IN_CREATE != 0 && beingWritten(path)):
			n.writing[path] = true
		default:
			if e.mask&writeDone != unix.IN_ATTRIB {
				delete(n.writing, path)
			}
			reload = true
		}
	}
	return reload
}

// beingWritten returns whether a file that has just appeared is new, so that its writer
// will close it. A link is complete at once.
func beingWritten(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || stat.Nlink == 1
}
