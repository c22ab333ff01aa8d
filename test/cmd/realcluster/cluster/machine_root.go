package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// Folders under machineConfig.Dir: the logs, the mount point of the root file system,
// and that of the memory which takes the changes to it.
const (
	logs      = "logs"
	rootDir   = "root"
	memoryDir = "memory"
)

// enterRoot gives this process, which is the first of its mount namespace, the
// machine's root file system: that of this computer, with changes in memory, and
// with devices, processes, cgroups and folders of the machine's own.
func (c *machineConfig) enterRoot() error {
	root := filepath.Join(c.Dir, rootDir)
	memory := filepath.Join(c.Dir, memoryDir)
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", memory, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	upper, work := filepath.Join(memory, "upper"), filepath.Join(memory, "work")
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir="+upper+",workdir="+work); err != nil {
		return err
	}
	for _, step := range []func(string) error{mountSystem, showClockSpeed, mountCgroups, c.mountDisk, c.writeFiles,
		c.coverSysctls, pivot} {
		if err := step(root); err != nil {
			return err
		}
	}
	// Containers may share mounts with the machine.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// mountSystem mounts the file systems that show the kernel, and memory for what
// does not outlive a start.
func mountSystem(root string) error {
	if err := mount("/dev", filepath.Join(root, "dev"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	for _, m := range []struct{ kind, dir, options string }{
		{"proc", "proc", ""}, // of the machine's processes
		{"sysfs", "sys", ""}, // of the machine's network
		{"tmpfs", "run", "mode=755"},
		{"tmpfs", "tmp", "mode=1777"},
	} {
		if err := mount(m.kind, filepath.Join(root, m.dir), m.kind, 0, m.options); err != nil {
			return err
		}
	}
	return nil
}

// showClockSpeed shows some speed of the processors where the kernel tells none, as one for user mode: the kubelet does
// not start without it (cAdvisor).
func showClockSpeed(root string) error {
	file := filepath.Join(root, "proc/cpuinfo")
	text, err := os.ReadFile(file)
	if err != nil || bytes.Contains(text, []byte("MHz")) {
		return err
	}
	cover := filepath.Join(root, "run", "cpuinfo")
	text = regexp.MustCompile(`(?m)^processor.*$`).ReplaceAll(text, []byte("$0\ncpu MHz\t\t: 1000.000"))
	if err := os.WriteFile(cover, text, 0o444); err != nil {
		return err
	}
	return mount(cover, file, "", unix.MS_BIND, "")
}

// mountCgroups shows the hierarchies of this computer where the machine expects
// them: the new sysfs has none.
func mountCgroups(root string) error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	top := "/sys/fs/cgroup"
	if len(mounts) > 0 && mounts[0] != top {
		if err := mount("tmpfs", filepath.Join(root, top), "tmpfs", 0, "mode=755"); err != nil {
			return err
		}
	}
	for _, m := range mounts {
		if !strings.HasPrefix(m, top) {
			continue // such as one of another container engine
		}
		if err := bind(m, filepath.Join(root, m)); err != nil {
			return err
		}
	}
	return nil
}

func (c *machineConfig) mountDisk(root string) error {
	// The machine's description and logs.
	if err := bind(c.Dir, filepath.Join(root, c.Dir)); err != nil {
		return err
	}
	for _, folder := range c.Disk {
		if err := bind(filepath.Join(c.Dir, folder), filepath.Join(root, folder)); err != nil {
			return err
		}
	}
	for to, from := range c.Binds {
		if err := bind(from, filepath.Join(root, to)); err != nil {
			return err
		}
	}
	return nil
}

func (c *machineConfig) writeFiles(root string) error {
	for path, text := range c.Files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		// A link would lead out of the new root.
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (c *machineConfig) coverSysctls(root string) error {
	dir := filepath.Join(root, "run", "sysctl")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, value := range c.Sysctls {
		cover := filepath.Join(dir, strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(cover, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := mount(cover, filepath.Join(root, "proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

// pivot makes root the root, and lets go of the old one.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// pivot_root(2): with both paths the same, the old root lies over the new one.
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("umount", err)
	}
	return os.Chdir("/")
}

// bind makes a folder visible at a second path, with all mounts below it.
func bind(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
}

func mount(from, to, kind string, flags uintptr, options string) error {
	if err := unix.Mount(from, to, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s %q on %s: %w", kind, from, to, err)
	}
	return nil
}
