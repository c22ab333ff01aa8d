package aptget

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FromSuite returns the path of a command of another Debian release than the
// system's, such as "trixie". The first call downloads the package and all that
// it needs, unpacks them into a directory of the user's cache and installs
// nothing. The command runs with the libraries of that release. It needs apt-get
// and dpkg-deb. The error matches ErrMissing.
func FromSuite(suite, name, debian string) (string, error) {
	path, err := fromSuite(suite, name, debian)
	if err != nil {
		return "", fmt.Errorf("%s of Debian's %s: %w: %w", name, suite, ErrMissing, err)
	}
	return path, nil
}

func fromSuite(suite, name, debian string) (path string, err error) {
	cache, err := CacheDir(suite + "-" + debian)
	if err != nil {
		return "", err
	}
	// Tests of several packages may come here at once.
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", os.NewSyscallError("flock", err)
	}
	path = filepath.Join(cache, "bin", name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	root := filepath.Join(cache, "root")
	if err := unpack(context.Background(), cache, root, Release{Name: suite}, debian); err != nil {
		return "", err
	}
	return path, writeRunner(path, root, name)
}

// CacheDir makes a directory of the user's cache that no other user can write to.
func CacheDir(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "nftproxy", name)
	return dir, os.MkdirAll(dir, 0o700)
}

// unpack fills root with packages and all that they depend on, the C library
// included: for apt-get no package is installed there yet. Files of apt-get are
// in work.
func unpack(ctx context.Context, work, root string, release Release, packages ...string) error {
	apt := filepath.Join(work, "apt")
	if err := errors.Join(os.RemoveAll(apt), os.RemoveAll(root)); err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	options, err := archive(apt, "deb http://deb.debian.org/debian "+release.Name+" main\n", release.Architecture)
	if err != nil {
		return err
	}
	install := append([]string{"install", "-y", "--download-only", "--no-install-recommends"}, packages...)
	for _, args := range [][]string{{"update"}, install} {
		if err := runIn(ctx, "", "apt-get", append(options[:len(options):len(options)], args...)...); err != nil {
			return err
		}
	}
	archives, err := filepath.Glob(filepath.Join(apt, "archives", "*.deb"))
	if err != nil {
		return err
	}
	if err := extract(ctx, archives, root); err != nil {
		return err
	}
	return os.RemoveAll(apt)
}

// archive makes the folder apt for the files of apt-get, and returns the options with which apt-get
// knows the given sources and no package that is installed.
func archive(apt, sources, architecture string) (options []string, err error) {
	for _, dir := range []string{filepath.Join(apt, "lists", "partial"), filepath.Join(apt, "archives", "partial")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	list, status := filepath.Join(apt, "sources.list"), filepath.Join(apt, "status")
	if err := errors.Join(os.WriteFile(list, []byte(sources), 0o600), os.WriteFile(status, nil, 0o600)); err != nil {
		return nil, err
	}
	if architecture != "" {
		options = []string{"-o", "APT::Architecture=" + architecture, "-o", "APT::Architectures=" + architecture}
	}
	return append(options,
		"-q", "-o", "Dir::State="+apt, "-o", "Dir::State::status="+status, "-o", "Dir::Cache="+apt,
		"-o", "Dir::Etc::SourceList="+list, "-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Acquire::Languages=none", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		// The download user of apt-get cannot write to a directory of root's.
		"-o", "APT::Sandbox::User=root",
	), nil
}

// extract puts the files of packages into a folder.
func extract(ctx context.Context, archives []string, dir string) error {
	for _, a := range archives {
		if err := runIn(ctx, "", "dpkg-deb", "-x", a, dir); err != nil {
			return err
		}
	}
	return nil
}

// writeRunner writes a script that starts a command of root with the dynamic
// linker and the libraries that are in root.
func writeRunner(path, root, name string) error {
	linker, err := anywhere(root, "lib", "*-linux-gnu*", "ld-linux*.so.*")
	if err != nil {
		return err
	}
	libraries, err := anywhere(root, "lib", "*-linux-gnu*")
	if err != nil {
		return err
	}
	command, err := anywhere(root, "*bin", name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' --library-path '%s' '%s' \"$@\"\n", linker[0],
		strings.Join(libraries, ":"), command[0])
	return os.WriteFile(path, []byte(script), 0o700)
}

// anywhere returns the files of root that match a pattern, of which there is one at least.
// Releases before trixie have some of them outside of /usr.
func anywhere(root string, pattern ...string) ([]string, error) {
	var all []string
	for _, base := range []string{filepath.Join(root, "usr"), root} {
		found, err := filepath.Glob(filepath.Join(base, filepath.Join(pattern...)))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no file %s in %s", filepath.Join(pattern...), root)
	}
	return all, nil
}

func run(name string, args ...string) error {
	return runIn(context.Background(), "", name, args...)
}

// runIn runs a command in a folder. Its output is in the error.
func runIn(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(out))
	}
	return nil
}
