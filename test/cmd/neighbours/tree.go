package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

// suite is the release of Debian that the programs are from.
const suite = "trixie"

// makeTree installs Debian packages into a tree of their own, unless the cache has it, and returns the tree's folder.
// The packages' scripts run in the tree, and start nothing.
func makeTree(ctx context.Context, packages, programs []string) (string, error) {
	cache, err := aptget.CacheDir("neighbours")
	if err != nil {
		return "", err
	}
	want := strings.Join(packages, ",")
	dir := filepath.Join(cache, fmt.Sprintf("%s-%x", suite, sha256.Sum256([]byte(want)))[:len(suite)+17])
	stamp := dir + ".done"
	if _, err := os.Stat(stamp); err == nil {
		return dir, addPrograms(ctx, dir, programs)
	}
	command, err := aptget.Command("mmdebstrap", "mmdebstrap")
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.RemoveAll(dir), os.RemoveAll(stamp)); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, command, "--mode=root", "--variant=apt", "--quiet",
		`--aptopt=APT::Install-Recommends "false"`, `--aptopt=Acquire::Retries "3"`,
		"--include="+want, suite, dir, "http://deb.debian.org/debian")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("install %s into a tree: %w: %s", want, err, bytes.TrimSpace(out))
	}
	return dir, errors.Join(os.WriteFile(stamp, nil, 0o600), addPrograms(ctx, dir, programs))
}

// addPrograms builds programs in Go that Debian has in older versions only. Each goes to the folder of its version in
// the tree's /opt.
func addPrograms(ctx context.Context, dir string, programs []string) error {
	for _, p := range programs {
		name, version, _ := strings.Cut(path.Base(p), "@")
		folder := filepath.Join(dir, "opt", version)
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			continue
		}
		cmd := exec.CommandContext(ctx, "go", "install", p)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+folder)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", p, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// system is a tree at work on a node: it has namespaces of its own for files, processes and names, and the node's for
// the network. What is written to the tree is lost with the system.
type system struct {
	init *child.Process
	node *testnet.Namespace
}

// enterTree makes a changing copy of the tree the root of all files. The first process then does nothing but to take
// notice of others that have ended.
const enterTree = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$WORK"
mkdir "$WORK/upper" "$WORK/work" "$WORK/root"
mount -t overlay overlay -o "lowerdir=$TREE,upperdir=$WORK/upper,workdir=$WORK/work" "$WORK/root"
cd "$WORK/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
for d in containers docker containerd; do
	mkdir -p var/lib/$d
	mount -t tmpfs tmpfs var/lib/$d
done
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
hostname node
mkdir run/old
pivot_root . run/old
umount -l /run/old
export PATH=/usr/sbin:/usr/bin HOME=/root
echo ready
while sleep 1; do :; done
`

// startSystem starts a system of a tree, or of several with a colon between them: files of the first one come first.
func startSystem(ctx context.Context, node *testnet.Namespace, tree, work string) (*system, error) {
	cmd := exec.Command("/bin/sh", "-c", enterTree)
	cmd.Env = append(os.Environ(), "TREE="+tree, "WORK="+work)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	p, err := child.Start(node, cmd)
	if err != nil {
		return nil, err
	}
	if _, _, err := p.Await(ctx, 0, func(l child.Line) bool { return l.Text == "ready" }); err != nil {
		return nil, errors.Join(fmt.Errorf("enter the tree: %w\n%s", err, p.Tail(5)), p.Kill())
	}
	return &system{p, node}, nil
}

// run runs a shell script in the system. What it starts in the background stays until the system ends. Its output goes
// to a file, so that such a process does not hold up the end.
func (s *system) run(ctx context.Context, script string) (string, error) {
	out, err := os.CreateTemp("", "neighbours-")
	if err != nil {
		return "", err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(s.init.PID()), "-m", "-p", "-u", "-i", "-r", "-w",
		"/bin/sh", "-ec", script)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = out, out
	err = s.node.Run(cmd)
	text, failed := os.ReadFile(out.Name())
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", script, err, bytes.TrimSpace(text))
	}
	return string(text), errors.Join(err, failed)
}

// stop ends all processes of the system.
func (s *system) stop() error { return s.init.Kill() }
