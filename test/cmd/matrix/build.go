package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// programs are those that machines run, built for a machine without Go.
type programs struct {
	dir, arch string
	packages  []string
}

// build builds the tests of the packages, this command as the first process of the machines, and nftproxy.
func (p programs) build(ctx context.Context) error {
	if err := errors.Join(os.RemoveAll(p.dir), os.MkdirAll(p.dir, 0o755)); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"build", "-o", p.file(initName), "./test/cmd/matrix"},
		{"build", "-o", p.file("nftproxy"), "./cmd/nftproxy"},
	} {
		if err := p.goTool(ctx, command...); err != nil {
			return err
		}
	}
	for _, pkg := range p.packages {
		if pkg == demo {
			if err := p.goTool(ctx, "build", "-o", p.file(demo), "./"+demo); err != nil {
				return err
			}
			continue
		}
		if err := p.goTool(ctx, "test", "-c", "-o", p.file(testFile(pkg)), "./"+pkg); err != nil {
			return err
		}
	}
	return nil
}

func (p programs) file(name string) string { return filepath.Join(p.dir, name) }

func testFile(pkg string) string { return strings.ReplaceAll(pkg, "/", "-") + ".test" }

// goTool runs the go command for a static, stripped binary.
func (p programs) goTool(ctx context.Context, args ...string) error {
	args = append([]string{args[0], "-ldflags=-s -w"}, args[1:]...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+p.arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(out))
	}
	return nil
}

// kubeProxy is what hack/build-tools.sh kube-proxy makes, for this computer's architecture.
const kubeProxy = "hack/tools/bin/kube-proxy"

// image is what is in the first root file system of a machine.
type image struct {
	programs
	// root has the commands that tests need, and their libraries.
	root string
	// kernelDir has the files of the kernel's package.
	kernelDir string
	release
}

// write writes the file system.
func (i image) write(file string, jobs []job) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buffered := bufio.NewWriterSize(f, 1<<20)
	w := newArchive(buffered)
	if i.root != "" {
		w.tree("/", i.root, unneeded)
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if _, err := os.Lstat(filepath.Join(i.root, dir)); errors.Is(err, os.ErrNotExist) {
			w.symlink("/"+dir, "usr/"+dir)
		}
	}
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp", "/root", "/etc"} {
		w.dir(dir)
	}
	w.file("/etc/passwd", 0o644,
		[]byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"))
	w.file("/etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	w.file("/etc/hosts", 0o644, []byte("127.0.0.1 localhost guest\n::1 localhost\n"))
	w.copyFile("/"+initName, i.file(initName))
	if exists(i.file("nftproxy")) {
		w.copyFile("/usr/sbin/nftproxy", i.file("nftproxy"))
	}
	i.addTests(w, jobs)
	if err := i.addModules(w); err != nil {
		return err
	}
	list, err := json.Marshal(jobs)
	if err != nil {
		return err
	}
	w.file(jobList, 0o644, list)
	return errors.Join(w.close(), buffered.Flush())
}

// unneeded tells which files of Debian's packages no test reads.
func unneeded(relative string) bool {
	for _, dir := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/lib/locale",
		".packages"} {
		if relative == dir {
			return true
		}
	}
	return path.Base(relative) == "gconv"
}

// addTests adds the tests that jobs need, with the files that these read.
func (i image) addTests(w *archive, jobs []job) {
	wanted := map[string]bool{}
	for _, j := range jobs {
		wanted[j.Name] = true
	}
	for _, pkg := range i.packages {
		if pkg == demo {
			w.copyFile("/usr/sbin/"+demo, i.file(demo))
			continue
		}
		if wanted[pkg] {
			w.copyFile(path.Join("/tests", testFile(pkg)), i.file(testFile(pkg)))
			if pkg == ipvsTests && i.arch == runtime.GOARCH && exists(kubeProxy) {
				w.copyFile("/usr/sbin/kube-proxy", kubeProxy)
			}
		}
		w.dir(path.Join("/src", pkg))
		if data := filepath.Join(pkg, "testdata"); exists(data) {
			w.tree(path.Join("/src", data), data, nil)
		}
	}
}

// addModules adds the kernel's modules, and the lists of those to load at the start and on demand.
func (i image) addModules(w *archive) error {
	dir, err := i.modulesDir()
	if err != nil {
		return err
	}
	lacks := func(name string) bool { return matches(i.lacks, name) }
	all, missing, err := modules(dir, slices.DeleteFunc(wantedModules(), lacks))
	if err != nil {
		return err
	}
	for _, m := range all {
		if lacks(m.Name) {
			return fmt.Errorf("a machine of %s would have the module %s, which others need", i.series, m.Name)
		}
		w.file(moduleFile(m), 0o644, m.Content)
	}
	onDemand := func(name string) bool { return matches(i.onDemand, name) }
	var list strings.Builder
	for _, m := range withNeeds(all, func(name string) bool { return !onDemand(name) }) {
		fmt.Fprintln(&list, moduleFile(m))
	}
	w.file(moduleList, 0o644, []byte(list.String()))
	w.file(moduleList+"-missing", 0o644, []byte(strings.Join(missing, "\n")))
	var demands []demand
	for _, m := range all {
		if onDemand(m.Name) {
			d := demand{Names: append(m.Aliases, m.Name)}
			for _, n := range withNeeds(all, func(name string) bool { return name == m.Name }) {
				d.Files = append(d.Files, moduleFile(n))
			}
			demands = append(demands, d)
		}
	}
	text, err := json.Marshal(demands)
	if err != nil {
		return err
	}
	w.file(onDemandList, 0o644, text)
	w.symlink("/usr/sbin/"+modprobe, "/"+initName)
	return nil
}

func (i image) modulesDir() (string, error) {
	return one(filepath.Join(i.kernelDir, "*", "modules", "*"), filepath.Join(i.kernelDir, "usr", "lib", "modules", "*"))
}

// lacking are the names by which the kernel asks for modules that the machine lacks.
func (i image) lacking() (map[string]bool, error) {
	names := map[string]bool{}
	if len(i.lacks) == 0 {
		return names, nil
	}
	dir, err := i.modulesDir()
	if err != nil {
		return nil, err
	}
	files, err := moduleFiles(dir)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return !matches(i.lacks, name) })
	all, _, err := modules(dir, slices.Collect(maps.Keys(files)))
	for _, m := range all {
		if _, lacks := files[m.Name]; lacks {
			names[m.Name] = true
			for _, a := range m.Aliases {
				names[a] = true
			}
		}
	}
	return names, err
}

// moduleFile is where a machine has a module.
func moduleFile(m module) string { return path.Join("/matrix/modules.d", m.Name+".ko") }

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// one returns the only file that matches one of the patterns.
func one(patterns ...string) (string, error) {
	var all []string
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			return "", err
		}
		all = append(all, found...)
	}
	if len(all) != 1 {
		return "", fmt.Errorf("%d files match %s", len(all), strings.Join(patterns, " or "))
	}
	return all[0], nil
}
