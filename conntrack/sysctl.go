package conntrack

import (
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

// Sysctls are the kernel settings net.netfilter.nf_conntrack_* that a service
// proxy looks after, with kube-proxy's meanings.
type Sysctls struct {
	// MaxPerCore is how many entries the table is to have room for, for each
	// online CPU; the product is cut at 1,048,576 (kube-proxy's bound, which
	// keeps machines with many cores from huge tables). 0 leaves the table's
	// size alone, whatever Min is.
	MaxPerCore int
	// Min is the least number of entries that the table is to have room for.
	Min int
	// TCPEstablished, TCPCloseWait, UDP and UDPStream are how long idle entries
	// stay: established TCP connections, those half closed, UDP flows, and UDP
	// flows with packets both ways. Parts of a second count as a whole one; 0
	// leaves a time-out as it is.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// BeLiberal has the kernel take TCP packets outside of the window as
	// belonging to the connection. False leaves the setting as it is.
	BeLiberal bool
}

// DefaultSysctls are kube-proxy's (v1.36).
func DefaultSysctls() Sysctls {
	return Sysctls{MaxPerCore: 32 << 10, Min: 128 << 10, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}
}

// maxLimit bounds what MaxPerCore asks for.
const maxLimit = 1 << 20

// Entries is how many entries the table of a machine with so many CPUs is to
// have room for; 0 for as many as it has now.
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

// Where the kernel shows its settings.
const (
	DefaultSettingsDir = "/proc/sys/net/netfilter"
	DefaultCPUDir      = "/sys/devices/system/cpu"
)

// Files says where the kernel's files are. The zero value has them in their
// usual places.
type Files struct {
	// Settings is a directory with the files nf_conntrack_max and so on; empty
	// for DefaultSettingsDir. What it shows are the settings of the reader's
	// network namespace, but for the table's size, which all share.
	Settings string
	// CPUs has the file online; empty for DefaultCPUDir.
	CPUs string
}

func (f Files) setting(file string) string {
	if f.Settings == "" {
		return filepath.Join(DefaultSettingsDir, file)
	}
	return filepath.Join(f.Settings, file)
}

// OnlineCPUs counts those of the machine, hardware threads each, as kube-proxy
// does: the process itself may be confined to some of them
// (kubernetes/kubernetes #99225). Where the kernel does not say, it is those
// that the process may use.
func (f Files) OnlineCPUs() int {
	dir := f.CPUs
	if dir == "" {
		dir = DefaultCPUDir
	}
	text, err := os.ReadFile(filepath.Join(dir, "online"))
	if n := countList(strings.TrimSpace(string(text))); err == nil && n > 0 {
		return n
	}
	return runtime.NumCPU()
}

// countList counts what a list such as 0-3,8 has (Linux, cputopology.rst); 0
// for what is none.
func countList(text string) int {
	n := 0
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
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

// Setting is one of the kernel's settings: what it is, and what it should be.
type Setting struct {
	// Name is as sysctl(8) has it: net.netfilter.nf_conntrack_max.
	Name string
	// Current is the kernel's own text, empty where it could not be read.
	// Time-outs are in seconds.
	Current string
	// Wanted is empty for a setting that is left as it is.
	Wanted string
	// AtLeast says that more than what is wanted is fine too: a limit is raised
	// but never lowered.
	AtLeast bool
	// Set says that Apply has written it.
	Set bool
	// Err is why it could not be read or set. It matches fs.ErrNotExist as long
	// as the kernel has no connection tracking, ErrHostOnly, unix.EROFS where
	// /proc/sys is mounted read-only, or another error of the kernel's.
	Err error
}

// ErrHostOnly: the size of the table is common to all network namespaces; those
// but the host's see it without write permission (Linux 5.10 and newer).
var ErrHostOnly = errors.New("can be set in the host's own network namespace only")

// Differs says whether the setting is known and is not what it should be.
func (s Setting) Differs() bool {
	if s.Wanted == "" || s.Current == "" || s.Current == s.Wanted {
		return false
	}
	if !s.AtLeast {
		return true
	}
	current, err := strconv.Atoi(s.Current)
	wanted, err2 := strconv.Atoi(s.Wanted)
	return err != nil || err2 != nil || current < wanted
}

// Plan reads the settings and changes nothing. All are in the list, in a fixed
// order, those too that are left as they are.
func (c Sysctls) Plan(f Files) []Setting {
	list := c.wanted(f)
	for i := range list {
		list[i].read(f)
	}
	return list
}

// Apply sets what differs and returns what came of it: the settings as they are
// now. One that cannot be set does not hold up the others.
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

// wanted lists the settings before anything has been read. The buckets are the
// hash table's lists: kube-proxy wants at least one to four entries. It sets
// them as /sys/module/nf_conntrack/parameters/hashsize, which is the same, but
// can be written from every network namespace.
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

// seconds rounds up: an entry must not go sooner than asked for, and 0 s at
// once.
func seconds(d time.Duration) string { return positive(int((d + time.Second - 1) / time.Second)) }

func (s *Setting) read(f Files) {
	text, err := os.ReadFile(f.setting(s.file()))
	if err != nil {
		s.Err = fmt.Errorf("read %s: %w", s.Name, explainSetting(err))
		return
	}
	s.Current = strings.TrimSpace(string(text))
}

// write sets a setting that has been read, and reads it again: the kernel
// rounds some.
func (s *Setting) write(f Files) {
	if err := writeSetting(f.setting(s.file()), s.Wanted, s.AtLeast); err != nil {
		s.Err = fmt.Errorf("set %s to %s: %w", s.Name, s.Wanted, explainSetting(err))
		return
	}
	s.Set = true
	s.read(f)
}

// writeSetting makes no file that is not there. A limit without write permission
// is another network namespace's view of the host's: the mode is looked at,
// since not everything holds root to it.
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

// explainSetting leaves the path out and adds what the error means here.
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
