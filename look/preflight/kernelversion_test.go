package preflight

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKernelVersions: only a number of kernel.org's own, below a fix, is a warning. A distribution's kernel has the
// fixes if its number says so, and gets a line otherwise.
func TestKernelVersions(t *testing.T) {
	const (
		both  = "lacks the fixes of CVE-2026-31665"
		fixed = "has the fixes of CVE-2026-31665, CVE-2026-43060"
		note  = "does not say whether it has the fixes of CVE-2026-31665"
	)
	for _, c := range []struct {
		version kernelVersion
		level   Level
		word    string
	}{
		// kernel.org
		{kernelVersion{release: "5.10.252"}, Yellow, both + " (5.10.253), CVE-2026-43060 (5.10.253)"},
		{kernelVersion{release: "5.10.253"}, Green, fixed},
		{kernelVersion{release: "5.15.202"}, Yellow, both + " (5.15.203)"},
		{kernelVersion{release: "6.1.166"}, Yellow, both + " (6.1.169), CVE-2026-43060 (6.1.167)"},
		{kernelVersion{release: "6.1.168"}, Yellow, both + " (6.1.169): "},
		{kernelVersion{release: "6.1.169"}, Green, fixed},
		{kernelVersion{release: "6.6.134"}, Yellow, both + " (6.6.135): "},
		{kernelVersion{release: "6.12.50"}, Yellow, both + " (6.12.82), CVE-2026-43060 (6.12.78)"},
		{kernelVersion{release: "6.12.82"}, Green, fixed},
		{kernelVersion{release: "6.18.44"}, Green, fixed},
		{kernelVersion{release: "6.19.12"}, Yellow, both + " (6.19.13): "},
		{kernelVersion{release: "7.0.0"}, Green, fixed},
		{kernelVersion{release: "7.2.1"}, Green, fixed},
		// Series that upstream had given up before the fix.
		{kernelVersion{release: "5.11.22"}, Yellow, both + " (5.15.203), CVE-2026-43060 (5.15.203)"},
		{kernelVersion{release: "6.14.11"}, Yellow, both + " (6.18.23), CVE-2026-43060 (6.18.20)"},
		{kernelVersion{release: "6.13"}, Yellow, both + " (6.18.23)"},
		// Candidates of the release with the fix may have it.
		{kernelVersion{release: "7.0.0-rc3"}, Green, note + " (7.0.0)"},
		{kernelVersion{release: "6.19.0-rc5-00012-gabcdef"}, Green, note},
		{kernelVersion{release: "7.3.0-rc1+"}, Green, fixed},
		// Debian
		{kernelVersion{"5.10.0-39-amd64", "#1 SMP Debian 5.10.262-1 (2026-10-20)", ""}, Green, "(5.10.262) " + fixed},
		{kernelVersion{"6.1.0-56-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-02)", ""}, Green,
			"6.1.0-56-amd64 (6.1.192) " + fixed},
		{kernelVersion{"6.1.0-28-cloud-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.119-1 (2024-11-22)", ""}, Green,
			"(6.1.119) " + note},
		{kernelVersion{"6.12.118+deb13-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.118-1 (2026-11-02)", ""}, Green,
			"6.12.118+deb13-amd64 " + fixed},
		{kernelVersion{"6.12.41+deb13-cloud-arm64", "#1 SMP Debian 6.12.41-1 (2025-08-12)", ""}, Green, note},
		// Ubuntu
		{kernelVersion{"5.15.0-131-generic", "#141-Ubuntu SMP", "Ubuntu 5.15.0-131.141-generic 5.15.173"}, Green,
			"(5.15.173) " + note},
		{kernelVersion{"5.15.0-190-generic", "#200-Ubuntu SMP", "Ubuntu 5.15.0-190.200-generic 5.15.205"}, Green,
			"(5.15.205) " + fixed},
		{kernelVersion{"6.8.0-1044-azure", "#50-Ubuntu SMP", "Ubuntu 6.8.0-1044.50-azure 6.8.12"}, Green,
			"(6.8.12) " + note + " (6.12.82)"},
		{kernelVersion{"6.14.0-37-generic", "#37~24.04.1-Ubuntu SMP", ""}, Green, note},
		{kernelVersion{"7.0.0-14-generic", "#14-Ubuntu SMP", "Ubuntu 7.0.0-14.14-generic 7.0.2"}, Green, "(7.0.2) " + fixed},
		// RHEL 8, 9, 10 and what is built from it; Oracle; SUSE
		{kernelVersion{release: "4.18.0-553.el8_10.x86_64"}, Yellow, "is older than 5.10.0"},
		{kernelVersion{release: "5.14.0-611.5.1.el9_7.x86_64"}, Green, note + " (5.15.203)"},
		{kernelVersion{release: "6.12.0-124.8.1.el10_1.x86_64"}, Green, note},
		{kernelVersion{release: "5.15.0-302.167.6.el9uek.x86_64"}, Green, note},
		{kernelVersion{release: "6.4.0-150600.23.60-default"}, Green, note + " (6.6.135)"},
		// Systems for nodes
		{kernelVersion{release: "5.10.237-230.949.amzn2.x86_64"}, Green, note},
		{kernelVersion{release: "6.1.141-155.222.amzn2023.x86_64"}, Green, note},
		{kernelVersion{release: "6.12.90-100.150.amzn2023.aarch64"}, Green, fixed},
		{kernelVersion{release: "5.15.146+"}, Green, note},
		{kernelVersion{release: "6.6.140+"}, Green, fixed},
		{kernelVersion{release: "6.12.48-talos"}, Green, note},
		{kernelVersion{release: "6.18.24-talos"}, Green, fixed},
		{kernelVersion{release: "6.6.95-flatcar"}, Green, note},
		{kernelVersion{release: "5.15.186.1-1.cm2"}, Green, note + " (5.15.203)"},
		{kernelVersion{release: "6.6.96.2-2.azl3"}, Green, note + " (6.6.135)"},
		{kernelVersion{release: "6.6.135.1-1.azl3"}, Green, fixed},
		{kernelVersion{release: "6.1.102"}, Yellow, both}, // Bottlerocket's has kernel.org's number
		{kernelVersion{release: "6.18.44-fc-v595"}, Green, fixed},
		// What else /proc may say
		{kernelVersion{release: ""}, Green, "says nothing"},
		{kernelVersion{release: "linux"}, Green, "says nothing"},
		{kernelVersion{release: "99999999999999999999.1.2"}, Green, "says nothing"},
		{kernelVersion{"6.12.50", "#1 SMP Debian", "Ubuntu"}, Yellow, both},
		{kernelVersion{"6.12.50", "#1 SMP Debian 6.1.192-2", "Ubuntu 7.0.0-1-generic 7.0.5"}, Yellow, both},
		{kernelVersion{release: "5.9.16"}, Yellow, "is older than 5.10.0"},
		{kernelVersion{release: "4.14.336"}, Yellow, "is older than 5.10.0"},
	} {
		f := c.version.finding()
		if f.Level != c.level || !strings.Contains(f.Found, c.word) || (f.Level == Green) != (f.Do == "") {
			t.Errorf("%q: %+v, want %s with %q", c.version, f, c.level, c.word)
		}
		if strings.Contains(c.word, note) && strings.Contains(f.Found, " lacks ") {
			t.Errorf("%q: %q", c.version, f.Found)
		}
	}
}

// TestKernelBugs: the comparison needs one release of a series, from the oldest to the newest, and docs/support.md has
// the same.
func TestKernelBugs(t *testing.T) {
	page, err := os.ReadFile("../../docs/support.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range kernelBugs() {
		var list []string
		for _, f := range b.fixed {
			list = append(list, strings.TrimSuffix(f.String(), ".0"))
		}
		_, row, _ := strings.Cut(string(page), "| "+b.name+" |")
		if row, _, _ = strings.Cut(row, "\n"); !strings.Contains(row, "| "+strings.Join(list, ", ")+" |") {
			t.Errorf("docs/support.md: the row of %s does not have %v", b.name, list)
		}
		if !slices.IsSortedFunc(b.fixed, func(a, b release) int { return slices.Compare(a[:], b[:]) }) {
			t.Errorf("%s: not in order: %v", b.name, b.fixed)
		}
		for i, f := range b.fixed {
			if i > 0 && f.series() == b.fixed[i-1].series() {
				t.Errorf("%s: two releases of a series: %v", b.name, f)
			}
		}
		if last := b.fixed[len(b.fixed)-1]; last[2] != 0 {
			t.Errorf("%s: the newest, %v, is none of mainline: later series would lack the fix", b.name, last)
		}
	}
}

// TestKernelVersionOfProc: the three files are read, and none but the first has to be there.
func TestKernelVersionOfProc(t *testing.T) {
	proc := t.TempDir()
	o := Options{Proc: proc}
	if f := o.kernelVersion(); f.Level != Yellow || !strings.Contains(f.Found, "cannot be checked") {
		t.Errorf("without a version: %+v", f)
	}
	write := func(name, text string) {
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(words string) {
		t.Helper()
		if f := o.kernelVersion(); f.Level != Green || !strings.Contains(f.Found, words) {
			t.Errorf("%+v does not say %q", f, words)
		}
	}
	write("sys/kernel/osrelease", "6.1.0-56-amd64\n")
	want("6.1.0-56-amd64 does not say")
	write("sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-02)\n")
	want("6.1.0-56-amd64 (6.1.192) has")
	write("version_signature", "Ubuntu 6.1.0-1.1-generic 6.1.193\n")
	want("(6.1.193) has")
}
