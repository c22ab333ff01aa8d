package aptget

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Unpack puts the files of Debian packages, without those of their dependencies,
// into a folder, and does nothing where it did so before. No script of the
// packages runs, and nothing of the computer's own changes. It needs the network
// when it does something.
func Unpack(ctx context.Context, dir string, packages ...string) error {
	return once(dir, packages, func(temp string) error { return unpackAlone(ctx, temp, dir, packages) })
}

// UnpackRoot puts the files of Debian packages and of all that they depend on into
// a folder, as for a system that has no package yet: with the C library, a command
// of theirs runs with the folder as its root file system. Otherwise it is as Unpack.
func UnpackRoot(ctx context.Context, dir string, release Release, packages ...string) error {
	return once(dir, packages, func(temp string) error { return unpack(ctx, temp, dir, release, packages...) })
}

// once fills a folder with packages unless it has them, and notes in it that it has.
func once(dir string, packages []string, fill func(temp string) error) (err error) {
	stamp := filepath.Join(dir, ".packages")
	want := strings.Join(packages, " ")
	if done, err := os.ReadFile(stamp); err == nil && string(done) == want {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("unpack %s: %w", want, err)
		}
	}()
	temp, err := os.MkdirTemp("", "aptget-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	if err := fill(temp); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}

// unpackAlone unpacks packages without those that they depend on.
func unpackAlone(ctx context.Context, temp, dir string, packages []string) error {
	run := func(name string, args ...string) error { return runIn(ctx, temp, name, args...) }
	// As root: apt otherwise warns that its own user cannot write to the folder.
	download := append([]string{"-q", "-o", "APT::Sandbox::User=root", "download"}, packages...)
	if err := run("apt-get", download...); err != nil {
		// The lists of packages may be missing or old.
		if err := errors.Join(run("apt-get", "-q", "update"), run("apt-get", download...)); err != nil {
			return err
		}
	}
	archives, err := filepath.Glob(filepath.Join(temp, "*.deb"))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return extract(ctx, archives, dir)
}
