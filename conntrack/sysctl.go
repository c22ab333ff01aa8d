package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Sysctls are the wanted values of the kernel settings net.netfilter.nf_conntrack_*,
// with the same meaning as in kube-proxy.
type Sysctls struct {
	// MaxPerCore is the number of entries that the table must have room for, for
	// each online CPU. The product is at most 1,048,576: that is kube-proxy's bound,
	// against huge tables on machines with many cores. 0 leaves the table's size
	// alone, whatever Min is.
	MaxPerCore int
	// Min is the least number of entries that the table must have room for.
	Min int
	// These are the time-outs of idle entries: of established TCP connections, of
	// half closed ones, of UDP flows, and of UDP flows with packets in both
	// directions. Parts of a second are rounded up; 0 leaves a time-out alone.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// BeLiberal lets the kernel count TCP packets outside of the window as part of
	// their connection. False leaves the setting alone.
	BeLiberal bool
}

// DefaultSysctls returns kube-proxy's defaults (v1.37).
func DefaultSysctls() Sysctls {
	return Sysctls{MaxPerCore: 32 << 10, Min: 128 << 10, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}
}

// maxLimit bounds the product of MaxPerCore and the number of CPUs.
const maxLimit = 1 << 20

// Entries returns the number of entries that the table must have room for on a machine
// with so many CPUs; 0 leaves the size alone.
func (c Sysctls) Entries(cpus int) int {
	switch n := c.MaxPerCore * cpus; {
	case c.MaxPerCore <= 0:
		return 0
	case n > maxLimit:
		return maxLimit
	default:
		return max(n, c.Min)
	}
}

// The directories in which the kernel shows its settings and its CPUs.
const (
	DefaultSettingsDir = "/proc/sys/net/netfilter"
	DefaultCPUDir      = "/sys/devices/system/cpu"
)

// Files says where the kernel's files are. The zero value stands for the usual
// directories.
type Files struct {
	// Settings is a directory with the files nf_conntrack_max and so on; empty for
	// DefaultSettingsDir. They show the settings of the reader's network namespace.
	// All namespaces share the table's size.
	Settings string
	// CPUs is the directory with the file online; empty for DefaultCPUDir.
	CPUs string
}

func (f Files) setting(file string) string {
	return filepath.Join(cmp.Or(f.Settings, DefaultSettingsDir), file)
}

// OnlineCPUs counts the machine's CPUs (hardware threads), as kube-proxy does. The
// process itself may be confined to some of them (kubernetes/kubernetes #99225). If
// the kernel does not say, OnlineCPUs counts the CPUs that the process may use.
func (f Files) OnlineCPUs() int {
	text, err := os.ReadFile(filepath.Join(cmp.Or(f.CPUs, DefaultCPUDir), "online"))
	if n := countList(strings.TrimSpace(string(text))); err == nil && n > 0 {
		return n
	}
	return runtime.NumCPU()
}

// countList counts the CPUs in a list such as 0-3,8 (Linux, cputopology.rst). It
// returns 0 for a text that is no list.
func countList(text string) int {
	n := 0
	for word := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(word, "-")
		if !isRange {
			last = first
		}
		low, err := strconv.Atoi(first)
		high, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || high < low {
			return 0
		}
		n += high - low + 1
	}
	return n
}

// Buckets returns the number of buckets of the kernel's hash table of entries, which
// all network namespaces share; 0 if the kernel does not say.
func (f Files) Buckets() int {
	text, err := os.ReadFile(f.setting("nf_conntrack_buckets"))
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return n
}

// BeLiberal says whether the kernel takes TCP segments out of the window for part of their connection.
func (f Files) BeLiberal() bool {
	text, err := os.ReadFile(f.setting("nf_conntrack_tcp_be_liberal"))
	return err == nil && strings.TrimSpace(string(text)) != "0"
}

// Uncounted says that the kernel does not count the packets of new connections.
func (f Files) Uncounted() bool {
	text, err := os.ReadFile(f.setting("nf_conntrack_acct"))
	return err == nil && strings.TrimSpace(string(text)) == "0"
}

// TCPTimeout is the time-out of TCP connections in a state, such as time_wait; usual if the kernel does not say.
func (f Files) TCPTimeout(state string, usual time.Duration) time.Duration {
	text, err := os.ReadFile(f.setting("nf_conntrack_tcp_timeout_" + state))
	if n, wrong := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil && wrong == nil {
		return time.Duration(n) * time.Second
	}
	return usual
}

// Setting is one of the kernel's settings: its current value and the wanted one.
type Setting struct {
	// Name is the name for sysctl(8), such as net.netfilter.nf_conntrack_max.
	Name string
	// Current is the kernel's own text; empty if it could not be read. Time-outs are
	// in seconds.
	Current string
	// Wanted is empty for a setting that is left alone.
	Wanted string
	// AtLeast says that a larger value than the wanted one is fine too, and 0, which stands for no limit
	// (Linux, nf_conntrack_core.c): limits are raised but never lowered.
	AtLeast bool
	// Set says that Apply has written it.
	Set bool
	// Err says why the setting could not be read or set. It matches fs.ErrNotExist
	// while the kernel has no connection tracking, unix.EROFS if /proc/sys is mounted
	// read-only, ErrHostOnly, or another error of the kernel.
	Err error
}

// ErrHostOnly is the error for the size of the table outside of the host's network
// namespace. All namespaces share the size; the others cannot write it (Linux 5.10 and
// newer).
var ErrHostOnly = errors.New("can be set in the host's own network namespace only")

// Differs reports whether the setting is known and does not have the wanted value.
func (s Setting) Differs() bool {
	if s.Wanted == "" || s.Current == "" || s.Current == s.Wanted {
		return false
	}
	if !s.AtLeast {
		return true
	}
	current, err := strconv.Atoi(s.Current)
	wanted, err2 := strconv.Atoi(s.Wanted)
	return err != nil || err2 != nil || current != 0 && current < wanted
}

// Plan reads the settings and changes nothing. The list has all settings in a fixed
// order, including those that are left alone.
func (c Sysctls) Plan(f Files) []Setting {
	list := c.wanted(f)
	for i := range list {
		list[i].read(f)
	}
	return list
}

// Apply sets the settings that differ and returns all settings as they are now. If one
// cannot be set, Apply still sets the others.
func (c Sysctls) Apply(f Files) []Setting {
	list := c.Plan(f)
	for i := range list {
		if list[i].Err == nil && list[i].Differs() {
			list[i].write(f)
		}
	}
	return list
}

const settingPrefix = "net.netfilter."

func (s *Setting) file() string { return strings.TrimPrefix(s.Name, settingPrefix) }

// wanted lists the settings with their wanted values and no current ones. As
// kube-proxy does, it wants at least one bucket of the hash table for four entries.
// kube-proxy sets the buckets in /sys/module/nf_conntrack/parameters/hashsize. That is
// the same setting, but it can be written from every network namespace.
func (c Sysctls) wanted(f Files) []Setting {
	entries := c.Entries(f.OnlineCPUs())
	liberal := ""
	if c.BeLiberal {
		liberal = "1"
	}
	return []Setting{
		{Name: settingPrefix + "nf_conntrack_max", Wanted: positive(entries), AtLeast: true},
		{Name: settingPrefix + "nf_conntrack_buckets", Wanted: positive(entries / 4), AtLeast: true},
		{Name: settingPrefix + "nf_conntrack_tcp_timeout_established", Wanted: seconds(c.TCPEstablished)},
		{Name: settingPrefix + "nf_conntrack_tcp_timeout_close_wait", Wanted: seconds(c.TCPCloseWait)},
		{Name: settingPrefix + "nf_conntrack_tcp_be_liberal", Wanted: liberal},
		{Name: settingPrefix + "nf_conntrack_udp_timeout", Wanted: seconds(c.UDP)},
		{Name: settingPrefix + "nf_conntrack_udp_timeout_stream", Wanted: seconds(c.UDPStream)},
	}
}

func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// seconds rounds up: an entry must not end sooner than asked for, and 0 s would end it
// at once.
func seconds(d time.Duration) string { return positive(int((d + time.Second - 1) / time.Second)) }

func (s *Setting) read(f Files) {
	text, err := os.ReadFile(f.setting(s.file()))
	if err != nil {
		s.Err = fmt.Errorf("read %s: %w", s.Name, explainSetting(err))
		return
	}
	s.Current = strings.TrimSpace(string(text))
}

// write sets a setting that was read before, and reads it again: the kernel rounds
// some values.
func (s *Setting) write(f Files) {
	if err := writeSetting(f.setting(s.file()), s.Wanted, s.AtLeast); err != nil {
		s.Err = fmt.Errorf("set %s to %s: %w", s.Name, s.Wanted, explainSetting(err))
		return
	}
	s.Set = true
	s.read(f)
}

// writeSetting writes a file that exists. A limit without write permission is the
// host's limit as another network namespace sees it. writeSetting checks the file's
// mode itself, since root can open files without write permission.
func writeSetting(path, text string, limit bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if limit && info.Mode().Perm()&0o200 == 0 {
		return ErrHostOnly
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text + "\n")
	return errors.Join(err, file.Close())
}

// explainSetting drops the path from an error and adds what the error means here.
func explainSetting(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		err = path.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w (is the kernel module nf_conntrack missing?)", err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w (in a container? it needs the host's /proc/sys/net/netfilter as a volume)", err)
	}
	return err
}
