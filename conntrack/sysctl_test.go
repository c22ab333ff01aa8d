package conntrack_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/test/lib/testnet"
)

// machine makes a directory with the settings and CPUs of an imaginary machine.
func machine(t *testing.T, online string, settings map[string]string) conntrack.Files {
	t.Helper()
	f := conntrack.Files{Settings: t.TempDir(), CPUs: t.TempDir()}
	files := map[string]string{}
	for name, text := range settings {
		files[filepath.Join(f.Settings, name)] = text + "\n"
	}
	if online != "" {
		files[filepath.Join(f.CPUs, "online")] = online + "\n"
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// kernelDefaults are the settings of a machine with plenty of memory (Linux
// 6.18, nf_conntrack-sysctl.rst).
func kernelDefaults() map[string]string {
	return map[string]string{
		"nf_conntrack_max": "262144", "nf_conntrack_buckets": "262144",
		"nf_conntrack_tcp_timeout_established": "432000", "nf_conntrack_tcp_timeout_close_wait": "60",
		"nf_conntrack_tcp_be_liberal": "0", "nf_conntrack_udp_timeout": "30", "nf_conntrack_udp_timeout_stream": "120",
	}
}

// contents reads the files in the directory of settings.
func contents(t *testing.T, f conntrack.Files) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(f.Settings)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(f.Settings, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = string(text)
	}
	return got
}

func TestSysctlsEntries(t *testing.T) {
	for name, c := range map[string]struct {
		perCore, min, cpus, want int
	}{
		"few CPUs: the least":                  {32768, 131072, 2, 131072},
		"by the CPUs":                          {32768, 131072, 8, 262144},
		"no more than 1 Mi by the CPUs":        {32768, 131072, 64, 1048576},
		"just 1 Mi":                            {32768, 131072, 32, 1048576},
		"the bound wins even over the least":   {32768, 2000000, 64, 1048576},
		"the least may be more than the bound": {32768, 2000000, 4, 2000000},
		"nothing for each CPU: left alone":     {0, 131072, 8, 0},
		"no least":                             {1000, 0, 3, 3000},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (conntrack.Sysctls{MaxPerCore: c.perCore, Min: c.min}).Entries(c.cpus); got != c.want {
				t.Errorf("%d entries, want %d", got, c.want)
			}
		})
	}
}

func TestOnlineCPUs(t *testing.T) {
	for text, want := range map[string]int{
		"0": 1, "0-1": 2, "0-3,8": 5, "0,2,4-7": 6, "0-127,256-383": 256,
		// A text that is no list, or a missing file, gives no number.
		"": runtime.NumCPU(), "none": runtime.NumCPU(), "3-1": runtime.NumCPU(), "0-": runtime.NumCPU(),
	} {
		if got := machine(t, text, nil).OnlineCPUs(); got != want {
			t.Errorf("online %q: %d CPUs, want %d", text, got, want)
		}
	}
	// This machine: the process runs on at least one of its CPUs.
	if got := (conntrack.Files{}).OnlineCPUs(); got < runtime.NumCPU() {
		t.Errorf("%d CPUs online, but %d to be used", got, runtime.NumCPU())
	}
}

func TestSysctlsApply(t *testing.T) {
	for name, c := range map[string]struct {
		sysctls conntrack.Sysctls
		online  string
		// have and want list the differences from kernelDefaults.
		have, want map[string]string
	}{
		"defaults: time-outs as asked for, a larger limit stays": {
			conntrack.DefaultSysctls(), "0-1", nil, map[string]string{
				"nf_conntrack_tcp_timeout_established": "86400\n", "nf_conntrack_tcp_timeout_close_wait": "3600\n",
			},
		},
		"limits are raised": {
			conntrack.Sysctls{MaxPerCore: 32768, Min: 131072}, "0-15",
			map[string]string{"nf_conntrack_buckets": "65536"},
			map[string]string{"nf_conntrack_max": "524288\n", "nf_conntrack_buckets": "131072\n"},
		},
		"no limit stays": {
			conntrack.Sysctls{MaxPerCore: 32768}, "0-7", map[string]string{"nf_conntrack_max": "0"}, nil,
		},
		"buckets are raised though the limit suffices": {
			conntrack.Sysctls{MaxPerCore: 32768}, "0-7",
			map[string]string{"nf_conntrack_max": "1000000", "nf_conntrack_buckets": "1024"},
			map[string]string{"nf_conntrack_max": "1000000\n", "nf_conntrack_buckets": "65536\n"},
		},
		"nothing is asked for": {conntrack.Sysctls{Min: 1 << 20}, "0-7", nil, nil},
		"all of it, parts of a second count": {
			conntrack.Sysctls{
				TCPEstablished: time.Hour, TCPCloseWait: 90 * time.Second, UDP: time.Millisecond,
				UDPStream: 1500 * time.Millisecond, BeLiberal: true,
			}, "0", nil, map[string]string{
				"nf_conntrack_tcp_timeout_established": "3600\n", "nf_conntrack_tcp_timeout_close_wait": "90\n",
				"nf_conntrack_tcp_be_liberal": "1\n", "nf_conntrack_udp_timeout": "1\n", "nf_conntrack_udp_timeout_stream": "2\n",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			have := kernelDefaults()
			maps.Copy(have, c.have)
			f := machine(t, c.online, have)
			want := contents(t, f)
			before := contents(t, f)
			maps.Copy(want, c.want)

			differing := map[string]bool{}
			for _, s := range c.sysctls.Plan(f) {
				if s.Err != nil || s.Set {
					t.Errorf("planned: %+v", s)
				}
				if s.Differs() {
					differing[s.Name] = true
				}
			}
			if diff := cmp.Diff(before, contents(t, f)); diff != "" {
				t.Fatalf("Plan changed something (-want +got):\n%s", diff)
			}
			for _, s := range c.sysctls.Apply(f) {
				if s.Err != nil || s.Differs() || s.Set != differing[s.Name] {
					t.Errorf("applied: %+v, differed before: %t", s, differing[s.Name])
				}
			}
			if diff := cmp.Diff(want, contents(t, f)); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
			for _, s := range c.sysctls.Apply(f) {
				if s.Set {
					t.Errorf("written again: %+v", s)
				}
			}
		})
	}
}

// TestSysctlsThatCannotBeSet: each setting says why it cannot be set, and Apply sets the
// others.
func TestSysctlsThatCannotBeSet(t *testing.T) {
	wanted := conntrack.Sysctls{MaxPerCore: 1 << 20, TCPEstablished: time.Hour, TCPCloseWait: time.Hour}
	results := func(list []conntrack.Setting) map[string]conntrack.Setting {
		byName := map[string]conntrack.Setting{}
		for _, s := range list {
			byName[s.Name] = s
		}
		return byName
	}
	const limit, buckets = "net.netfilter.nf_conntrack_max", "net.netfilter.nf_conntrack_buckets"
	const established, closeWait = "net.netfilter.nf_conntrack_tcp_timeout_established",
		"net.netfilter.nf_conntrack_tcp_timeout_close_wait"

	t.Run("no connection tracking", func(t *testing.T) {
		f := machine(t, "0", nil)
		for name, s := range results(wanted.Apply(f)) {
			if !errors.Is(s.Err, fs.ErrNotExist) || s.Set || s.Differs() {
				t.Errorf("%s: %+v", name, s)
			}
		}
		if got := contents(t, f); len(got) != 0 {
			t.Errorf("made %v", got)
		}
	})
	t.Run("one is missing", func(t *testing.T) {
		have := kernelDefaults()
		delete(have, "nf_conntrack_tcp_timeout_established")
		got := results(wanted.Apply(machine(t, "0", have)))
		if s := got[established]; !errors.Is(s.Err, fs.ErrNotExist) {
			t.Errorf("%+v", s)
		}
		if s := got[closeWait]; !s.Set || s.Err != nil || s.Current != "3600" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("another network namespace's view", func(t *testing.T) {
		f := machine(t, "0", kernelDefaults())
		for _, file := range []string{"nf_conntrack_max", "nf_conntrack_buckets"} {
			if err := os.Chmod(filepath.Join(f.Settings, file), 0o444); err != nil {
				t.Fatal(err)
			}
		}
		got := results(conntrack.Sysctls{MaxPerCore: 1 << 20, TCPEstablished: time.Hour}.Apply(f))
		if s := got[limit]; !errors.Is(s.Err, conntrack.ErrHostOnly) || !s.Differs() || s.Set {
			t.Errorf("%+v", s)
		}
		if s := got[buckets]; s.Err != nil || s.Set {
			t.Errorf("%+v: as large as is wanted", s)
		}
		if s := got[established]; !s.Set || s.Err != nil {
			t.Errorf("%+v", s)
		}
	})
	t.Run("nonsense where a number was", func(t *testing.T) {
		have := kernelDefaults()
		have["nf_conntrack_max"] = "many"
		if s := results(wanted.Apply(machine(t, "0", have)))[limit]; s.Current != "1048576" || !s.Set {
			t.Errorf("%+v", s)
		}
	})
	t.Run("a read-only file system", func(t *testing.T) {
		f := machine(t, "0", kernelDefaults())
		var got map[string]conntrack.Setting
		readOnly(t, f.Settings, func() { got = results(wanted.Apply(f)) })
		for _, name := range []string{limit, established, closeWait} {
			if s := got[name]; !errors.Is(s.Err, unix.EROFS) || !s.Differs() || s.Set {
				t.Errorf("%+v", s)
			}
		}
	})
}

// readOnly calls fn with the directory mounted read-only, on a thread that has its own
// mounts and ends with the call.
func readOnly(t *testing.T, dir string, fn func()) {
	t.Helper()
	testnet.SkipUnwanted(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // Never unlocked: no other goroutine may get the thread.
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount(dir, dir, "", unix.MS_BIND, "")
		}
		if err == nil {
			err = unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
		if err == nil {
			fn()
		}
		done <- err
	}()
	testnet.Require(t, <-done)
}

// TestSysctlsOfANamespace sets time-outs in the settings of a network namespace. It sees
// the machine's limits there, and cannot change them.
func TestSysctlsOfANamespace(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "sysctl")
	limit := filepath.Join(conntrack.DefaultSettingsDir, "nf_conntrack_max")
	outside, err := os.ReadFile(filepath.Join(conntrack.DefaultSettingsDir, "nf_conntrack_tcp_timeout_established"))
	if err != nil {
		t.Skipf("no connection tracking: %v", err)
	}
	var got []conntrack.Setting
	err = ns.Do(func() error {
		if info, err := os.Stat(limit); err != nil || info.Mode().Perm()&0o222 != 0 {
			t.Fatalf("%s can be written (%v): this is not a namespace of its own", limit, err)
		}
		got = conntrack.Sysctls{
			MaxPerCore: 1 << 30, TCPEstablished: 12345 * time.Second, TCPCloseWait: time.Hour, BeLiberal: true,
			UDP: 31 * time.Second, UDPStream: 121 * time.Second,
		}.Apply(conntrack.Files{})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	current := map[string]string{}
	for _, s := range got {
		if s.AtLeast {
			if s.Set || s.Differs() && !errors.Is(s.Err, conntrack.ErrHostOnly) {
				t.Errorf("%+v", s)
			}
			continue
		}
		if !s.Set || s.Err != nil {
			t.Errorf("%+v", s)
		}
		if current[s.Name], err = ns.ReadSysctl(s.Name); err != nil {
			t.Error(err)
		}
	}
	want := map[string]string{
		"net.netfilter.nf_conntrack_tcp_timeout_established": "12345",
		"net.netfilter.nf_conntrack_tcp_timeout_close_wait":  "3600",
		"net.netfilter.nf_conntrack_tcp_be_liberal":          "1",
		"net.netfilter.nf_conntrack_udp_timeout":             "31", "net.netfilter.nf_conntrack_udp_timeout_stream": "121",
	}
	if diff := cmp.Diff(want, current); diff != "" {
		t.Errorf("in the namespace (-want +got):\n%s", diff)
	}
	after, err := os.ReadFile(filepath.Join(conntrack.DefaultSettingsDir, "nf_conntrack_tcp_timeout_established"))
	if err != nil || string(after) != string(outside) {
		t.Errorf("outside it was %q and is %q (%v)", outside, after, err)
	}
}
