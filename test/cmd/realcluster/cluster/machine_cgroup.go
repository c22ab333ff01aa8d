package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupMounts lists where the cgroup hierarchies are mounted, of version 1 and 2.
func cgroupMounts() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find the cgroups: %w", err)
	}
	defer f.Close()
	var mounts []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// proc_pid_mountinfo(5): the mount point is the fifth field, the file
		// system's type the first after the dash.
		before, after, found := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if found && len(fields) >= 5 && strings.HasPrefix(after, "cgroup") && !slices.Contains(mounts, fields[4]) {
			mounts = append(mounts, fields[4])
		}
	}
	return mounts, lines.Err()
}

// makeCgroup makes a cgroup in every hierarchy, with all that the cgroup above it
// may give.
func makeCgroup(path string) error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		dir := mount
		for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			if err := delegate(dir); err != nil {
				return fmt.Errorf("make cgroup %s: %w", path, err)
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make cgroup %s: %w", path, err)
			}
			if err := inheritCPUs(parent, dir); err != nil {
				return fmt.Errorf("make cgroup %s: %w", path, err)
			}
		}
	}
	return nil
}

// delegate lets the children of a cgroup of version 2 use its controllers.
func delegate(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // version 1
	}
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(b)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
			return err
		}
	}
	return nil
}

// inheritCPUs copies the processors and memory nodes, without which a cpuset of
// version 1 takes no process.
func inheritCPUs(parent, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
		return nil // version 2 inherits by itself
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		b, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // another controller
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), b, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cgroupTimeout bounds the wait for the kernel to let go of a cgroup whose
// processes have ended.
const cgroupTimeout = 10 * time.Second

// RemoveCgroup removes a cgroup and those below it from every hierarchy. Its
// processes must have ended. One that is missing is no error.
func RemoveCgroup(path string) error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	if strings.Trim(path, "/") == "" {
		return errors.New("remove cgroup: the root is not ours")
	}
	var errs []error
	for _, mount := range mounts {
		errs = append(errs, removeCgroups(filepath.Join(mount, path)))
	}
	return errors.Join(errs...)
}

func removeCgroups(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	deadline := time.Now().Add(cgroupTimeout)
	for _, dir := range slices.Backward(dirs) {
		// The kernel has no event for the end of EBUSY in version 1.
		err := unix.Rmdir(dir)
		for ; err == unix.EBUSY && time.Now().Before(deadline); err = unix.Rmdir(dir) {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil && err != unix.ENOENT {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}
