package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"nftproxy/test/lib/aptget"
)

// A kernel for user mode (User-mode Linux) is a program of this computer: its processes run at the processor's speed,
// where qemu is 10 to 20 times as slow without /dev/kvm. Its system calls are slow, less so from 6.16 on, where they
// need no ptrace. It has several processors from 6.19 on, of which a process uses one at a time, whatever its threads.
// Debian's binary package of it lacks parts of nf_tables, so that the kernel is built from Debian's source, in 20
// minutes on two cores.

// userModeVariable is the variable of a machine's first process that says that the kernel is one for user mode.
const userModeVariable = "MATRIX_USER_MODE"

// userModeConfig has what such a kernel has beside the defaults of its architecture: what Debian's kernels have of
// what the tests and a cluster need. What can be a module is one, so that a machine can lack it.
//
//go:embed usermode.config
var userModeConfig string

// userModeArguments are those of the kernel's program.
func (m machine) userModeArguments(image, parameters string) []string {
	return append(strings.Fields(parameters+"/dev/ttyS0 "+userModeVariable+"=yes"),
		fmt.Sprintf("mem=%dM", m.memory), "initrd="+image, "uml_dir="+filepath.Dir(image),
		fmt.Sprintf("ncpus=%d", m.cpus), "seccomp=auto", // an older kernel takes them for its first process' variables
		// Standard output is the line for the jobs alone.
		"con=null", "con0=null,fd:2", "ssl=null", "ssl0=null,fd:1")
}

// buildUserMode builds the release's newest kernel for user mode, once for each version.
func (r release) buildUserMode(ctx context.Context, cache string, out io.Writer) (kernel aptget.Newest, err error) {
	kernel, err = aptget.UnpackNewest(ctx, cache, aptget.Release{Name: r.name}, "linux-source")
	if err != nil {
		return kernel, err
	}
	source := kernel.Dir
	kernel.Dir = filepath.Join(source, "user-mode")
	kernel.Version += " for user mode"
	stamp := filepath.Join(kernel.Dir, "built-with")
	if with, err := os.ReadFile(stamp); err == nil && string(with) == userModeConfig {
		return kernel, nil
	}
	fmt.Fprintf(out, "%s: %s is built, which takes a while\n", r.series, kernel.Version)
	for _, command := range []string{"gcc", "make", "bc", "flex", "bison"} { // each of a package of its name
		if _, err := aptget.Command(command, command); err != nil {
			return kernel, err
		}
	}
	archive, err := one(filepath.Join(source, "usr", "src", "linux-source-*.tar.xz"))
	if err != nil {
		return kernel, err
	}
	work, err := os.MkdirTemp("/var/tmp", "matrix-kernel-")
	if err != nil {
		return kernel, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := buildIn(ctx, work, archive, kernel.Dir); err != nil {
		return kernel, fmt.Errorf("build %s: %w", kernel.Version, err)
	}
	return kernel, os.WriteFile(stamp, []byte(userModeConfig), 0o644)
}

// buildIn builds a kernel in a folder for its source, and puts it and its modules into another.
func buildIn(ctx context.Context, work, archive, into string) error {
	if err := errors.Join(os.RemoveAll(into), os.MkdirAll(filepath.Join(into, "boot"), 0o755)); err != nil {
		return err
	}
	wanted := filepath.Join(work, "wanted")
	if err := os.WriteFile(wanted, []byte(userModeConfig), 0o644); err != nil {
		return err
	}
	for _, c := range [][]string{
		{"tar", "xf", archive, "--strip-components=1"},
		{"make", "ARCH=um", "defconfig"},
		{"scripts/kconfig/merge_config.sh", "-m", ".config", wanted},
		{"make", "ARCH=um", "olddefconfig"},
	} {
		if err := runQuietly(ctx, work, c...); err != nil {
			return err
		}
	}
	known, err := knownOptions(work)
	if err != nil {
		return err
	}
	if err := checkConfig(filepath.Join(work, ".config"), known); err != nil {
		return err
	}
	for _, c := range [][]string{
		{"make", "ARCH=um", fmt.Sprintf("-j%d", runtime.NumCPU()), "linux", "modules"},
		{"make", "ARCH=um", "INSTALL_MOD_PATH=" + into, "modules_install"},
		{"cp", "linux", filepath.Join(into, "boot", "vmlinuz-user-mode")},
	} {
		if err := runQuietly(ctx, work, c...); err != nil {
			return err
		}
	}
	return nil
}

// checkConfig finds options of those known that the kernel's own rules left out: one that depends on another is dropped
// silently.
func checkConfig(file string, known map[string]bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var lost []string
	for line := range strings.Lines(userModeConfig) {
		line = strings.TrimSpace(line)
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "CONFIG_"), "=")
		if known[name] && !bytes.Contains(text, []byte("\n"+line+"\n")) {
			lost = append(lost, line)
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("the kernel does not take the options %s", strings.Join(lost, ", "))
	}
	return nil
}

// knownOptions are those of a kernel's source for this architecture: each series has some that others lack.
func knownOptions(source string) (map[string]bool, error) {
	known := map[string]bool{}
	option := regexp.MustCompile(`(?m)^\s*(?:menu)?config\s+(\w+)`)
	return known, filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if filepath.Base(filepath.Dir(path)) == "arch" && entry.Name() != "um" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasPrefix(entry.Name(), "Kconfig") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range option.FindAllSubmatch(text, -1) {
			known[string(m[1])] = true
		}
		return err
	})
}

// runQuietly runs a command in a folder. The end of its output is in the error.
func runQuietly(ctx context.Context, dir string, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, tail(string(text), 20))
	}
	return nil
}
