package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// computerVariable is the variable of a machine's first process that says that its commands run among the files of the
// computer that runs the machine.
const computerVariable = "MATRIX_COMPUTER"

// computerTag names the computer's files to virtiofs.
const computerTag = "computer"

// diskDir is the folder whose files are on the machine's disk: more than memory holds, and what the kernel's overlay
// takes as the upper layer.
const diskDir = "/var/tmp"

// enterComputer makes the files of the computer the machine's own. It sees none of the machine's changes: they are in
// memory, and those in diskDir on the disk.
func enterComputer() error {
	const lower, memory, root = "/computer", "/changes", "/root-of-all"
	upper, work := memory+"/upper", memory+"/work"
	kind, options, disk := "virtiofs", "", "/dev/vda"
	if os.Getenv(userModeVariable) != "" {
		kind, options, disk = "hostfs", "/", "/dev/ubda"
	}
	for _, m := range []struct{ from, on, kind, options string }{
		{computerTag, lower, kind, options},
		{"tmpfs", memory, "tmpfs", "mode=755"},
		{"overlay", root, "overlay", "lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + work},
		{disk, root + diskDir, "ext4", ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", ""},
	} {
		if err := os.MkdirAll(m.on, 0o755); err != nil {
			return err
		}
		var flags uintptr
		if m.on == lower {
			flags = unix.MS_RDONLY
		}
		if err := unix.Mount(m.from, m.on, m.kind, flags, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.on, err)
		}
		if m.on == memory {
			if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
				return err
			}
		}
	}
	if err := os.Chmod(root+diskDir, 0o777|os.ModeSticky); err != nil {
		return err
	}
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run", "/tmp"} {
		if err := unix.Mount(dir, root+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	if err := takeAlong(root); err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return errors.Join(os.NewSyscallError("chroot", unix.Chroot(".")), os.Chdir("/"))
}

// takeAlong copies what the machine itself needs: this program, which the kernel calls as modprobe, its lists and its
// modules.
func takeAlong(root string) error {
	if err := os.CopyFS(filepath.Join(root, filepath.Dir(jobList)), os.DirFS(filepath.Dir(jobList))); err != nil {
		return err
	}
	program, err := os.ReadFile("/" + initName)
	if err != nil {
		return err
	}
	target := filepath.Join(root, filepath.Dir(jobList), modprobe)
	if err := os.WriteFile(target, program, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "proc/sys/kernel/modprobe"), []byte(filepath.Join(filepath.Dir(jobList),
		modprobe)), 0)
}
