package watch

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	// file is nil as long as the kernel has no inotify to give.
	file *os.File
	// fd is file's descriptor. Calling file.Fd would make its reads block a thread.
	fd int
	// blind is why the kernel does not tell of all changes, nil if it does: it bounds how many instances and watches a
	// user has (fs.inotify), and a directory that cannot be read cannot be watched.
	blind error
	// mu guards pending and buffer.
	mu sync.Mutex
	// pending are the events that came and were not taken yet, in order.
	pending []event
	// more has an entry while there are any.
	more chan struct{}
	// buffer is what the kernel writes events into.
	buffer []byte
	// ended is closed when the reader has ended.
	ended chan struct{}
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

func newNotifier() *notifier {
	return &notifier{more: make(chan struct{}, 1), ended: make(chan struct{}), dirs: map[uint32]directory{}, writing: map[string]bool{}}
}

// open starts inotify, unless that is done.
func (n *notifier) open() error {
	if n.file != nil {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("start inotify: %w", err)
	}
	n.file, n.fd = os.NewFile(uintptr(fd), "inotify"), fd
	n.buffer = make([]byte, 64<<10)
	conn, err := n.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("read inotify: %w", err)
	}
	go n.read(conn)
	return nil
}

// close ends the reading.
func (n *notifier) close() {
	if n.file == nil {
		return
	}
	n.file.Close()
	<-n.ended
}

func (n *notifier) read(conn syscall.RawConn) {
	defer close(n.ended)
	for {
		if err := conn.Read(func(uintptr) bool { return n.receive() }); err != nil {
			return // The file is closed: the wait for an inotify descriptor fails for no other reason.
		}
	}
}

// receive takes the events that the kernel has into pending. It returns whether there were any.
func (n *notifier) receive() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	any := false
	for {
		size, err := unix.Read(n.fd, n.buffer)
		if err == unix.EINTR {
			continue
		}
		if err != nil || size <= 0 {
			return any
		}
		any = true
		n.pending = append(n.pending, parseEvents(n.buffer[:size])...)
		select {
		case n.more <- struct{}{}:
		default:
		}
	}
}

// take returns the events that came since the last call.
func (n *notifier) take() []event {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.pending
	n.pending = nil
	return list
}

// incomplete returns whether a process is writing the file, as far as the events tell that have come by now. What was read of
// the file just before may be incomplete then.
func (n *notifier) incomplete(path string) bool {
	if n.writing[path] {
		return true
	}
	if n.file == nil {
		return false
	}
	n.receive()
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.pending, func(e event) bool {
		return e.mask&(writeBegun|unix.IN_CREATE) != 0 && filepath.Join(n.dirs[e.wd].path, e.name) == path
	})
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

// follow watches the directories in want, each for the names there, and no others. It returns whether a directory is new:
// that one may have changed before the watch. blind has the first directory that cannot be watched.
func (n *notifier) follow(want map[string]names) (added bool) {
	old := maps.Clone(n.dirs)
	clear(n.dirs)
	if n.blind = n.open(); n.blind != nil {
		return false
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		wd, err := unix.InotifyAddWatch(n.fd, path, allEvents)
		switch err {
		case nil:
		case unix.ENOENT, unix.ENOTDIR:
			continue // An event of its parent comes when that changes.
		default:
			n.blind = cmp.Or(n.blind, fmt.Errorf("watch directory %s: %w", path, err))
			continue
		}
		if _, known := old[uint32(wd)]; !known {
			added = true
			n.forget(path)
		}
		n.dirs[uint32(wd)] = directory{path, want[path]}
	}
	for wd, dir := range old {
		if _, still := n.dirs[wd]; !still {
			// It fails for a directory that is gone: its watch is gone, too.
			_, _ = unix.InotifyRmWatch(n.fd, wd)
			n.forget(dir.path)
		}
	}
	return added
}

// forget forgets who writes in a directory: no event tells when one that is not watched ends.
func (n *notifier) forget(dir string) {
	maps.DeleteFunc(n.writing, func(path string, _ bool) bool { return filepath.Dir(path) == dir })
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
