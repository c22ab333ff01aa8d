// Package aptget promises a command of another project's for tests and
// benchmarks: the one that is there, or else that of a Debian package, which it
// installs where that is permitted. It also unpacks packages without installing
// them.
//
// The proxy itself runs no command of others.
package aptget

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrMissing says that the command is missing and could not be installed.
var ErrMissing = errors.New("no such command")

// Command returns the path of a command. If the command is missing, it installs the
// Debian package first. The error matches ErrMissing.
func Command(name, debian string) (string, error) {
	if path, found := findCommand(name); found {
		return path, nil
	}
	if err := install(name, debian); err != nil {
		return "", fmt.Errorf("%s: %w: %w", name, ErrMissing, err)
	}
	if path, found := findCommand(name); found {
		return path, nil
	}
	return "", fmt.Errorf("%s: %w: the package %s has none", name, ErrMissing, debian)
}

func findCommand(name string) (string, bool) {
	if path, err := exec.LookPath(name); err == nil {
		return path, true
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} { // root's, seldom on a user's path
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, true
		}
	}
	return "", false
}

func install(name, debian string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("only root can install it")
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return err
	}
	// Tests of several packages may come here at once.
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "nftproxy-apt.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	if _, found := findCommand(name); found {
		return nil
	}
	for _, args := range [][]string{{"update"}, {"install", "-y", "--no-install-recommends", debian}} {
		if err := run(apt, append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}
