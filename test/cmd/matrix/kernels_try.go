package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"nftproxy/test/lib/aptget"
)

// options are the command's flags.
type options struct {
	releases          []release
	packages          []string
	arch              string
	tests, logs, page string
	short, build      bool
	counted, kvm      bool
	userMode          bool
	timeout           time.Duration
	cpus              int
}

func parse(args []string) (options, error) {
	var o options
	f := pflag.NewFlagSet("matrix kernels", pflag.ContinueOnError)
	var all, kernels []string
	for _, r := range releases() {
		if len(r.lacks) == 0 {
			all = append(all, r.series)
		}
	}
	f.StringSliceVar(&kernels, "kernels", all, "`series` of kernels to try")
	f.StringVar(&o.arch, "arch", "amd64", "`architecture` of the machines: amd64 or arm64")
	f.StringSliceVar(&o.packages, "packages", nil, "`packages` whose tests to run; all that need a kernel by default")
	f.StringVar(&o.tests, "run", "", "regular `expression` for the names of the tests to run")
	f.StringVar(&o.logs, "logs", "bin/kernels", "`folder` for the output of tests and kernels, in a folder of its own "+
		"for arm64")
	f.StringVar(&o.page, "page", "", "`file` whose matrix to replace by the last outcome of each package, such as "+
		"docs/evidence/kernels.md")
	f.BoolVar(&o.short, "short", true, "run fewer rounds of each test")
	f.BoolVar(&o.build, "build", true, "build the programs; otherwise those of the last time are used")
	f.BoolVar(&o.counted, "count-instructions", false, "have the machines' clocks count instructions: for tests that "+
		"measure, on a busy computer")
	f.BoolVar(&o.kvm, "kvm", false, "have this computer's processor run the machines, by /dev/kvm")
	f.BoolVar(&o.userMode, "user-mode", false, "build the kernels as programs of this computer: much faster than "+
		"emulation, with one processor before 6.19")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "end a kernel's machine after this `time`")
	f.IntVar(&o.cpus, "cpus", 2, "`number` of processors of a machine")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if len(kernels) == 0 {
		return o, errors.New("--kernels names none")
	}
	for _, series := range kernels {
		r, err := findRelease(series)
		if err != nil {
			return o, err
		}
		o.releases = append(o.releases, r)
	}
	if o.arch != "amd64" { // the page is about amd64
		o.logs = filepath.Join(o.logs, o.arch)
	}
	if o.userMode && (o.kvm || o.counted || o.arch != runtime.GOARCH) {
		return o, errors.New("--user-mode is another way than --kvm, --count-instructions and --arch")
	}
	return o, nil
}

func tryKernels(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	t, err := targetOf(o.arch)
	if err != nil {
		return err
	}
	qemu, err := t.emulator(o.userMode)
	if err != nil {
		return err
	}
	cache, err := aptget.CacheDir(cacheName(o.arch))
	if err != nil {
		return err
	}
	commands := filepath.Join(cache, "commands-"+commandRelease)
	if err := aptget.UnpackRoot(ctx, commands, aptget.Release{Name: commandRelease, Architecture: o.arch},
		commandPackages()...); err != nil {
		return err
	}
	if err := os.MkdirAll(o.logs, 0o755); err != nil {
		return err
	}
	built := programs{filepath.Join(o.logs, "programs"), o.arch, o.allPackages()}
	if o.build {
		if err := built.build(ctx); err != nil {
			return err
		}
	}
	var columns []column
	for _, r := range o.releases {
		m := machine{target: t, qemu: qemu, cpus: o.cpus, memory: 3072, kvm: o.kvm, counted: o.counted,
			userMode: o.userMode}
		c, err := try(ctx, o, r, m, cache, commands, built, out)
		if err != nil {
			return fmt.Errorf("kernel %s: %w", r.series, err)
		}
		columns = append(columns, c)
		if o.tests == "" { // all tests of its packages
			if err := c.keep(o.logs); err != nil {
				return err
			}
		}
	}
	return o.report(columns, out)
}

// tries says whether to try a release's kernel.
func (o options) tries(r release) bool {
	return slices.ContainsFunc(o.releases, func(tried release) bool { return tried.series == r.series })
}

// packagesOn are the packages whose tests to run on a release's kernel.
func (o options) packagesOn(r release) []string {
	if o.packages != nil {
		return o.packages
	}
	return r.tested()
}

// allPackages are those of all releases.
func (o options) allPackages() (all []string) {
	for _, r := range o.releases {
		for _, p := range o.packagesOn(r) {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// report prints the matrix, and puts it on its page. Failed tests are an error.
func (o options) report(columns []column, out io.Writer) error {
	text := matrix(columns)
	fmt.Fprintf(out, "\n%s", text)
	if o.page != "" {
		if err := o.writePage(out); err != nil {
			return err
		}
	}
	var failed []string
	for _, c := range columns {
		if slices.ContainsFunc(c.Results, func(r result) bool { return !r.good() }) {
			failed = append(failed, c.Series)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("tests failed on kernel %s", strings.Join(failed, " and "))
	}
	return nil
}

// writePage puts the last outcome of each package on each kernel on the page, in a table for the kernels as Debian has
// them and in one for those that lack modules. If some are missing it says which, and leaves the table as it is: what
// stands there is from a run elsewhere, and true.
func (o options) writePage(out io.Writer) error {
	for _, s := range []struct {
		section
		lacks bool
	}{{page(), false}, {pageWithoutModules(), true}} {
		of := slices.DeleteFunc(releases(), func(r release) bool { return len(r.lacks) > 0 != s.lacks })
		if !slices.ContainsFunc(of, o.tries) {
			continue
		}
		columns, whole := []column(nil), true
		for _, r := range of {
			c, missing, err := complete(o.logs, r.series, r.tested())
			if err != nil {
				return err
			}
			if len(missing) > 0 {
				whole = false
				fmt.Fprintf(out, "\non kernel %s no tests ran yet of %s: its table in %s stays as it is\n", r.series,
					strings.Join(missing, ", "), o.page)
			}
			columns = append(columns, c)
		}
		if !whole {
			continue
		}
		if err := s.Replace(o.page, matrix(columns)); err != nil {
			return err
		}
	}
	return nil
}

// try runs the tests on the newest kernel of a release.
func try(ctx context.Context, o options, r release, m machine, cache, commands string, built programs,
	out io.Writer) (c column, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	kernel, err := r.unpack(ctx, cache, o.arch, o.userMode, out)
	if err != nil {
		return c, err
	}
	if m.kernel, err = kernelFile(kernel); err != nil {
		return c, err
	}
	i := image{programs: built, root: commands, kernelDir: kernel.Dir, release: r}
	lacking, err := i.lacking()
	if err != nil {
		return c, err
	}
	file := filepath.Join(o.logs, r.series+".initramfs")
	defer func() { err = errors.Join(err, os.Remove(file)) }()
	m.console = filepath.Join(o.logs, r.series+"-console.log")
	m.image = func(jobs []job) (string, error) { return file, i.write(file, jobs) }
	started := time.Now()
	c = column{Series: r.series, Kernel: kernel.Version, Day: started.Format(time.DateOnly), Lacks: r.lacks}
	err = m.run(ctx, o.jobs(r), func(name string, done outcome) error {
		asked := done.askedByOurs(name, lacking)
		if name == checkJob {
			if c.Findings, err = readFindings(done.output); err == nil && len(asked) > 0 {
				err = fmt.Errorf("nftproxy check asked for modules: %v", asked)
			}
			return err
		}
		log := filepath.Join(o.logs, r.series+"-"+testFile(name)+".log")
		if err := os.WriteFile(log, []byte(string(done.output)+done.console), 0o644); err != nil {
			return err
		}
		result, err := read(ctx, name, done)
		result.Asked = asked
		c.Results = append(c.Results, result)
		result.print(out)
		return err
	})
	fmt.Fprintf(out, "  %s in all\n", time.Since(started).Round(time.Second))
	return c, err
}

// unpack unpacks the release's newest kernel, or builds it for user mode.
func (r release) unpack(ctx context.Context, cache, arch string, userMode bool, out io.Writer) (aptget.Newest, error) {
	kernel, err := aptget.Newest{}, error(nil)
	if userMode {
		kernel, err = r.buildUserMode(ctx, cache, out)
	} else {
		kernel, err = aptget.UnpackNewest(ctx, cache, aptget.Release{Name: r.name, Architecture: arch}, kernelPackage+arch)
	}
	if err != nil {
		return kernel, err
	}
	fmt.Fprintf(out, "%s: %s %s\n", r.series, kernel.Name, kernel.Version)
	if kernel.Old != nil {
		fmt.Fprintf(out, "  perhaps not the newest: %v\n", kernel.Old)
	}
	return kernel, nil
}

func kernelFile(k aptget.Newest) (string, error) {
	return one(filepath.Join(k.Dir, "boot", "vmlinuz-*"))
}

// askedByOurs are the requests of a job's programs of this repository for modules that the machine lacks.
func (o outcome) askedByOurs(name string, lacking map[string]bool) []string {
	const longest = 15 // characters of a process's name
	var found []string
	for _, r := range o.asked {
		test := testFile(name)
		ours := r.By == test[:min(len(test), longest)] || r.By == "nftproxy" || r.By == demo
		if ours && lacking[moduleName(r.Module)] {
			found = append(found, r.By+": "+r.Module)
		}
	}
	return found
}

// checkJob is the name of the job that has nftproxy look at the kernel.
const checkJob = "nftproxy-check"

// jobs are nftproxy check, and the tests, as commands of a machine.
func (o options) jobs(r release) []job {
	jobs := []job{{Name: checkJob, Dir: "/", Command: []string{"/usr/sbin/nftproxy", "check", "-o", "json"}}}
	for _, pkg := range o.packagesOn(r) {
		if pkg == demo {
			jobs = append(jobs, job{Name: demo, Dir: "/", Command: []string{"/usr/sbin/" + demo}})
			continue
		}
		command := []string{path.Join("/tests", testFile(pkg)), "-test.v=test2json", "-test.timeout=30m", "-test.skip=" +
			sameEverywhere}
		if o.short {
			command = append(command, "-test.short")
		}
		tests := o.tests
		if tests == "" {
			tests = kernelTests(pkg)
		}
		command = append(command, "-test.run="+tests)
		jobs = append(jobs, job{Name: pkg, Dir: path.Join("/src", pkg), Command: command})
	}
	return jobs
}

// print prints the result for people.
func (r result) print(out io.Writer) {
	word := "ok"
	switch {
	case r.Died:
		word = "KERNEL DIED"
	case !r.good():
		word = "FAILED"
	}
	fmt.Fprintf(out, "  %-24s %-6s passed %d, failed %d, skipped %d, in %s\n", r.Pkg, word, r.Passed, r.Failed,
		len(r.Skips), r.Took.Round(time.Second))
	if len(r.Asked) > 0 {
		fmt.Fprintf(out, "    asked for modules that are not there: %s\n", strings.Join(r.Asked, ", "))
	}
	for _, name := range r.failedTests() {
		fmt.Fprintf(out, "    --- %s\n%s\n", name, indent(tail(r.Failures[name], 20)))
	}
	for _, name := range keys(r.Skips) {
		fmt.Fprintf(out, "    skipped %s: %s\n", name, reason(r.Skips[name]))
	}
}

func indent(text string) string { return "      " + strings.ReplaceAll(text, "\n", "\n      ") }

// reason is what a skipped test says, without the place in its file.
func reason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if _, words, found := strings.Cut(line, ".go:"); found {
			_, words, _ = strings.Cut(words, ": ")
			said = append(said, words)
		}
	}
	return strings.Join(said, "; ")
}
