package preflight

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// release is a release of kernel.org: 6.12.82 is {6, 12, 82}. The patch level of a release candidate is -1.
type release [3]int

func (r release) String() string { return fmt.Sprintf("%d.%d.%d", r[0], r[1], max(r[2], 0)) }

func (r release) before(other release) bool { return slices.Compare(r[:], other[:]) < 0 }

func (r release) series() [2]int { return [2]int{r[0], r[1]} }

// oldest is the oldest kernel that nftproxy is made for.
func oldest() release { return release{5, 10, 0} }

// kernelBug is a bug of all kernels from oldest on until its fix, which nftproxy can meet.
type kernelBug struct {
	name string
	// fixed is the first release with the fix of each series that upstream maintained then, and the first of mainline,
	// from the oldest to the newest.
	fixed []release
}

// kernelBugs is the table of what nftproxy can meet, as the kernel's CVE team publishes it
// (github.com/CVEProject/cvelistV5, cves/2026). docs/support.md says what an operator does about them, and why bugs of
// other parts of netfilter are not here.
func kernelBugs() []kernelBug {
	return []kernelBug{
		{"CVE-2026-31665", []release{{5, 10, 253}, {5, 15, 203}, {6, 1, 169}, {6, 6, 135}, {6, 12, 82}, {6, 18, 23},
			{6, 19, 13}, {7, 0, 0}}},
		{"CVE-2026-43060", []release{{5, 10, 253}, {5, 15, 203}, {6, 1, 167}, {6, 6, 130}, {6, 12, 78}, {6, 18, 20},
			{6, 19, 10}, {7, 0, 0}}},
	}
}

// lackedBy returns the release to update to if this one lacks the fix. A series that upstream has given up gets no fix:
// that of the next series counts.
func (b kernelBug) lackedBy(r release) (fix release, lacks bool) {
	for _, f := range b.fixed {
		if f.series() == r.series() || r.before(f) {
			return f, r.before(f)
		}
	}
	return release{}, false
}

// kernelVersion is what a kernel says about its version.
type kernelVersion struct {
	// release is that of uname -r. build is that of uname -v, in which Debian's kernels name the release of kernel.org
	// that they were made from. signature is /proc/version_signature, in which Ubuntu's do.
	release, build, signature string
}

// parseRelease reads the release at the beginning of a version, and returns what follows it.
func parseRelease(version string) (r release, rest string, is bool) {
	m := regexp.MustCompile(`^(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(.*)$`).FindStringSubmatch(version)
	if m == nil {
		return release{}, "", false
	}
	for i := range r {
		r[i], _ = strconv.Atoi(m[1+i]) // 0 if there is no patch level
	}
	if strings.HasPrefix(m[4], "-rc") {
		r[2] = -1
	}
	return r, m[4], true
}

// upstream returns the release of kernel.org that the kernel was made from, as far as its version says. Plain says that
// the version is that of kernel.org, without anything of a distribution's.
func (v kernelVersion) upstream() (r release, plain, known bool) {
	r, rest, known := parseRelease(v.release)
	for _, base := range []string{after(v.build, "Debian "), v.signature[strings.LastIndex(v.signature, " ")+1:]} {
		if b, _, is := parseRelease(base); is && b.series() == r.series() && r.before(b) {
			r = b
		}
	}
	return r, rest == "", known
}

func after(text, separator string) string {
	_, text, _ = strings.Cut(text, separator)
	return text
}

// finding says which fixes the kernel lacks. A distribution brings fixes into kernels whose number does not change, so
// only kernel.org's own numbers are a reason for a warning.
func (v kernelVersion) finding() Finding {
	const probe = "kernel version"
	r, plain, known := v.upstream()
	name := v.release
	switch {
	case !known:
		return green(probe, fmt.Sprintf("%q says nothing about known bugs", v.release))
	case r.before(oldest()):
		return yellow(probe, name+" is older than "+oldest().String()+", the oldest that nftproxy is made for",
			"use another kernel (docs/support.md)")
	case !strings.HasPrefix(name, r.String()) && r[2] > 0:
		name += " (" + r.String() + ")"
	}
	var all, lacks []string
	for _, b := range kernelBugs() {
		all = append(all, b.name)
		if fix, without := b.lackedBy(r); without {
			lacks = append(lacks, fmt.Sprintf("%s (%s)", b.name, fix))
		}
	}
	switch {
	case len(lacks) == 0:
		return green(probe, name+" has the fixes of "+strings.Join(all, ", "))
	case !plain:
		return green(probe, name+" does not say whether it has the fixes of "+strings.Join(lacks, ", ")+
			"; a distribution may have them under a number of its own: docs/support.md#bugs-of-kernels")
	}
	return yellow(probe, name+" lacks the fixes of "+strings.Join(lacks, ", ")+": when nftproxy's tables are removed, "+
		"and Services have had time-outs of their own, packets may use memory that was freed",
		"update the kernel, unless your distribution says that it has the fixes under a number of its own; until then see "+
			"docs/support.md#bugs-of-kernels")
}

// kernelVersion compares the version of the kernel with those that have fixes.
func (o Options) kernelVersion() Finding {
	release, has, err := o.sysctl("kernel.osrelease")
	if err == nil && !has {
		err = fmt.Errorf("there is no %s", filepath.Join(o.Proc, "sys/kernel/osrelease"))
	}
	if err != nil {
		return failed("kernel version", err)
	}
	// Without them, which few kernels have, the release alone counts.
	build, _, _ := o.sysctl("kernel.version")
	signature, _ := os.ReadFile(filepath.Join(o.Proc, "version_signature"))
	return kernelVersion{release, build, strings.TrimSpace(string(signature))}.finding()
}
