package otherproxy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
)

// The options of a socket by which a table is read and replaced. They are the same numbers for
// IPv4 and IPv6 (uapi/linux/netfilter_ipv4/ip_tables.h).
const (
	optGetInfo     = 64
	optGetEntries  = 65
	optReplace     = 64
	optAddCounters = 65
)

// nameLen is the length of a table's name, XT_TABLE_MAXNAMELEN.
const nameLen = 32

// lockFile is the lock of iptables-legacy for one change at a time, on the host.
const lockFile = "/run/xtables.lock"

// lockPatience is how long the lock may be another process's, and lockPeriod the time between two
// tries to get it.
const (
	lockPatience = 5 * time.Second
	lockPeriod   = 50 * time.Millisecond
)

// readLegacyChains finds kube-proxy's chains in a table of the older interface.
func readLegacyChains(f ip.Family, table string) (Rules, error) {
	b, err := readLegacy(f, table)
	if err != nil {
		return Rules{}, fmt.Errorf("look for chains of kube-proxy in table %s of iptables-legacy: %w", tableName(f, table),
			err)
	}
	return b.rules(), nil
}

// legacyTables lists the tables that the namespace has.
func legacyTables(f ip.Family) ([]string, error) {
	file, err := os.Open("/proc/thread-self/net/" + f.String() + "_tables_names")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // The kernel has no such interface, or its module is not loaded.
	}
	if err != nil {
		return nil, fmt.Errorf("list the tables of iptables-legacy: %w", err)
	}
	defer file.Close()
	var tables []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		tables = append(tables, lines.Text())
	}
	return tables, lines.Err()
}

// LegacyChain is a chain of iptables-legacy that the kernel runs at a hook.
type LegacyChain struct {
	Table, Chain string
	// PolicyDrop says that the policy is to drop.
	PolicyDrop bool
	// Rules is what the rules may do, in this chain and in those to which it leads. Reaches has the names of these chains.
	Rules   Effects
	Reaches []string
	// Closes says that a rule of a program other than Kubernetes drops packets or queues them, and EndsClosed that the
	// chain's last rule drops or rejects all that comes to it.
	Closes, EndsClosed bool
}

// LegacyChains returns the chains of all tables that exist.
func LegacyChains() ([]LegacyChain, error) {
	var found []LegacyChain
	for _, f := range ip.Families() {
		tables, err := legacyTables(f)
		if err != nil {
			return nil, err
		}
		for _, table := range tables {
			b, err := readLegacy(f, table)
			if err != nil {
				return nil, fmt.Errorf("read table %s of iptables-legacy: %w", tableName(f, table), err)
			}
			found = append(found, b.baseChains()...)
		}
	}
	return found, nil
}

// baseChains describes the table's own chains.
func (b *blob) baseChains() []LegacyChain {
	type chain struct {
		rules      Effects
		endsClosed bool
		targets    []string
	}
	chains, dropping := map[string]chain{}, map[string]bool{}
	for i := range b.entries {
		e := &b.entries[i]
		if b.isPolicy(e) {
			dropping[e.chain] = e.drops
			continue
		}
		c, effects := chains[e.chain], EffectsOfTarget(e.extension)
		effects.Drops = e.drops || e.extension == "REJECT"
		c.endsClosed = effects.Drops && e.takesAll(b.family)
		c.rules.Add(effects)
		if e.target != "" {
			c.targets = append(c.targets, e.target)
		}
		chains[e.chain] = c
	}
	var found []LegacyChain
	for _, name := range b.hookNames() {
		l := LegacyChain{
			Table: tableName(b.family, b.name), Chain: name, PolicyDrop: dropping[name],
			EndsClosed: chains[name].endsClosed,
			Reaches:    reach(name, func(chain string) []string { return chains[chain].targets }),
		}
		for _, reached := range l.Reaches {
			rules := chains[reached].rules
			l.Rules.Add(rules)
			l.Closes = l.Closes || (rules.Drops || rules.Queues) && !OfKubernetes(b.name, reached)
		}
		found = append(found, l)
	}
	return found
}

// reach lists a chain and the chains to which it leads, each once.
func reach(chain string, targets func(chain string) []string) []string {
	seen, reached := map[string]bool{chain: true}, []string{chain}
	for i := 0; i < len(reached); i++ {
		for _, target := range targets(reached[i]) {
			if !seen[target] {
				seen[target], reached = true, append(reached, target)
			}
		}
	}
	return reached
}

// isPolicy says whether the entry is the policy of one of the table's own chains.
func (b *blob) isPolicy(e *entry) bool {
	for i := range hooks {
		if b.valid&(1<<i) != 0 && b.policy[i] == e.at {
			return true
		}
	}
	return false
}

// rules describes what the table has of kube-proxy.
func (b *blob) rules() Rules {
	r := rulesIn(IPTablesLegacy, b.family, b.name)
	for i := range b.entries {
		e := &b.entries[i]
		switch {
		case e.head && isChain(b.name, e.chain):
			r.chains = append(r.chains, e.chain)
		case b.drops(e), e.target == "", !isChain(b.name, e.target):
		case r.Keep == nil:
			r.Keep = fmt.Errorf("%w: a rule in chain %s leads to %s", ErrForeign, e.chain, e.target)
		}
	}
	r.setOpenings(b.chainRules())
	return r
}

// drops says whether an entry is kube-proxy's own.
func (b *blob) drops(e *entry) bool {
	return isChain(b.name, e.chain) || isBuiltin(e.chain) && isChain(b.name, e.target) && isJumpComment(e.comment)
}

// removeLegacyChains reads the table again and replaces it by one without kube-proxy's chains and
// the rules that lead there.
func removeLegacyChains(r Rules) error {
	unlock, err := lockLegacy(lockFile, lockPatience)
	if err != nil {
		return err
	}
	defer unlock()
	before, err := readLegacy(r.family, r.name)
	if err != nil {
		return err
	}
	if now := before.rules(); now.Keep != nil {
		return now.Keep
	}
	goes := func(e *entry) bool {
		return before.drops(e) && (slices.Contains(r.chains, e.chain) || isBuiltin(e.chain) && slices.Contains(r.chains,
			e.target))
	}
	after, kept, err := before.without(goes)
	if err != nil {
		return err
	}
	return after.replace(before, kept)
}

// lockLegacy takes the lock of iptables, where the file is within reach: a container has it only
// if the directory is mounted. Without it, a change by iptables between the two steps of
// removeLegacyChains is lost unless it changes the number of rules. The error says that another
// process has kept the lock for that long.
func lockLegacy(path string, patience time.Duration) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return func() {}, nil
	}
	unlock = func() { _ = file.Close() } // closing releases the lock
	ticker := time.NewTicker(lockPeriod)
	defer ticker.Stop()
	for end := time.Now().Add(patience); ; <-ticker.C {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(end), errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			unlock()
			return nil, fmt.Errorf("lock %s: another process has held it for %s", path, patience)
		default: // It is ours, or the file system has no locks.
			return unlock, nil
		}
	}
}

// legacySocket opens a socket that takes the options. A datagram socket needs no CAP_NET_RAW.
func legacySocket(f ip.Family) (fd, level int, err error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == ip.V6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return fd, level, os.NewSyscallError("socket", err)
}

// readTries is how often a table is read that changes between the two questions.
const readTries = 10

// readLegacy reads a table. One that the namespace lacks has no entries: a question for it would make it.
func readLegacy(f ip.Family, name string) (*blob, error) {
	tables, err := legacyTables(f)
	if err != nil || !slices.Contains(tables, name) {
		return &blob{family: f, name: name}, err
	}
	fd, level, err := legacySocket(f)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	for try := 1; ; try++ {
		b, err := readLegacyOnce(fd, level, f, name)
		if errors.Is(err, unix.EAGAIN) && try < readTries {
			continue
		}
		return b, err
	}
}

// legacyInfoLen is the length of a struct ipt_getinfo. It ends with the number and the size of the
// entries.
const legacyInfoLen = nameLen + 4 + 2*hooks*4 + 4 + 4

func readLegacyInfo(f ip.Family, name string) (info [legacyInfoLen]byte, err error) {
	fd, level, err := legacySocket(f)
	if err != nil {
		return info, err
	}
	defer func() { _ = unix.Close(fd) }()
	return legacyInfo(fd, level, name)
}

func legacyInfo(fd, level int, name string) (info [legacyInfoLen]byte, err error) {
	copy(info[:], name)
	err = getOption(fd, level, optGetInfo, info[:])
	return info, err
}

func readLegacyOnce(fd, level int, f ip.Family, name string) (*blob, error) {
	info, err := legacyInfo(fd, level, name)
	if err != nil {
		return nil, fmt.Errorf("ask for table %s: %w", name, err)
	}
	b := &blob{family: f, name: name, valid: binary.NativeEndian.Uint32(info[nameLen:])}
	for i := range hooks {
		b.hook[i] = binary.NativeEndian.Uint32(info[nameLen+4+4*i:])
		b.policy[i] = binary.NativeEndian.Uint32(info[nameLen+4+4*hooks+4*i:])
	}
	size := binary.NativeEndian.Uint32(info[legacyInfoLen-4:])
	const header = nameLen + 8 // the size, and padding
	entries := make([]byte, header+int(size))
	copy(entries, name)
	binary.NativeEndian.PutUint32(entries[nameLen:], size)
	if err := getOption(fd, level, optGetEntries, entries); err != nil {
		return nil, fmt.Errorf("read table %s: %w", name, err)
	}
	return b, b.parseEntries(entries[header:])
}

// replace puts the table in the place of before. The entries keep their counters: kept has the
// number of each one in before.
func (b *blob) replace(before *blob, kept []int) error {
	fd, level, err := legacySocket(b.family)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	const counterLen = 16
	old := make([]byte, counterLen*len(before.entries)) // the kernel writes the counters here
	request := b.replaceRequest(uint32(len(before.entries)), uintptr(unsafe.Pointer(unsafe.SliceData(old))))
	err = setOption(fd, level, optReplace, request, old)
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if err != nil {
		return fmt.Errorf("replace table %s: %w", b.name, err)
	}
	const header = nameLen + 8
	counters := make([]byte, header, header+counterLen*len(kept))
	copy(counters, b.name)
	binary.NativeEndian.PutUint32(counters[nameLen:], uint32(len(kept)))
	for _, i := range kept {
		counters = append(counters, old[counterLen*i:counterLen*(i+1)]...)
	}
	if err := setOption(fd, level, optAddCounters, counters, nil); err != nil {
		return fmt.Errorf("restore the counters of table %s: %w", b.name, err)
	}
	return nil
}

// replaceRequest is a struct ipt_replace.
func (b *blob) replaceRequest(oldEntries uint32, counters uintptr) []byte {
	request := append([]byte(b.name), make([]byte, nameLen-len(b.name))...)
	add := func(values ...uint32) {
		for _, v := range values {
			request = binary.NativeEndian.AppendUint32(request, v)
		}
	}
	add(b.valid, uint32(len(b.entries)), b.size())
	add(b.hook[:]...)
	add(b.policy[:]...)
	add(oldEntries)
	request = binary.NativeEndian.AppendUint64(request, uint64(counters))
	for _, e := range b.entries {
		request = append(request, e.raw...)
	}
	return request
}

func getOption(fd, level, option int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(unsafe.Pointer(&length)), 0)
	return optionError("getsockopt", errno)
}

// setOption sets an option whose value may have the address of alive.
func setOption(fd, level, option int, value, alive []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))), uintptr(len(value)), 0)
	runtime.KeepAlive(alive)
	return optionError("setsockopt", errno)
}

func optionError(call string, errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return os.NewSyscallError(call, errno)
}
