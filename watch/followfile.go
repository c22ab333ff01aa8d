package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lookPeriod is the time between two looks at files. A look takes the state of each file, and reads those that have
// changed since they were read, but not since the look before, and that no process has open for writing: they may be
// incomplete. So a change counts within two periods. Events of the kernel (inotify) would tell sooner. They miss a
// file system that is mounted over a directory, changes that another host makes, and all changes where a user has no
// instance left. A look is one stat(2) of each file.
const lookPeriod = 400 * time.Millisecond

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

// FollowFile calls each with the text of the file, or the error of reading it, at the start, and within a second after
// each change of what is at the path, as the kubelet changes the files of a mounted ConfigMap, until ctx ends. A file
// that a process is writing is read after it is closed. A text may be the same as the last one.
func FollowFile(ctx context.Context, path string, each func(text []byte, err error)) {
	last := stateOf(path)
	each(readRegular(path))
	var read fileState // none: the next look confirms what was read at the start
	looks := time.NewTicker(lookPeriod)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
			now := stateOf(path)
			if now == last && now != read && !beingWritten(path) {
				read = now
				each(readRegular(path))
			}
			last = now
		}
	}
}

// beingWritten says whether a process has the file open for writing: then the kernel refuses a lease of it (F_SETLEASE
// in fcntl(2)). Of the files of other users it gives none, and on some file systems: there only rest tells.
func beingWritten(path string) bool {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // without waiting for the other end of a pipe
	if err != nil {
		return false
	}
	defer file.Close() // which ends the lease
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	return errors.Is(err, unix.EAGAIN)
}

// readRegular reads a file. A pipe would wait for its other end, and a device may have no end.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}
