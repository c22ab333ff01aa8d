package flowcost

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/florianl/go-nflog/v2"
	"github.com/mdlayher/netlink"
	timo "github.com/ti-mo/conntrack"
	"github.com/ti-mo/netfilter"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/nfnetlink"
	"nftproxy/test/lib/testnet"
)

// listenerVariable makes this binary a listener: a process of its own, so that its CPU time is its own.
const listenerVariable = "FLOWCOST_LISTENER"

func TestMain(m *testing.M) {
	spec := os.Getenv(listenerVariable)
	if spec == "" {
		os.Exit(m.Run())
	}
	if err := listen(spec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// report is what a listener has seen and used so far.
type report struct {
	CPU                               time.Duration
	New, Update, Destroy, Bytes, Lost int64
	// Open is how many connections it will still ask for.
	Open int64
	// Attributes has a bit for each attribute of an event: new, update and destroy.
	Attributes [3]uint64
}

// counts are those of the process.
var counts struct {
	new, update, destroy, bytes, lost atomic.Int64
	attributes                        [3]atomic.Uint64
	open                              func() int64 // set before the first report; nil for none
}

// listen listens in a way such as "events 16 1,3", and reports for each line of its standard input.
func listen(spec string) error {
	fields := strings.Fields(spec)
	ways := map[string]func([]string) error{"events": events, "events-library": eventsLibrary, "log": logs,
		"log-library": logsLibrary, "dump": dumps, "get": gets,
		"follow": follow}
	failed := make(chan error, 1)
	if err := ways[fields[0]](fields[1:]); err != nil {
		return err
	}
	fmt.Println("{}")
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			open := int64(0)
			if counts.open != nil {
				open = counts.open()
			}
			failed <- json.NewEncoder(os.Stdout).Encode(report{processTime(),
				counts.new.Load(), counts.update.Load(), counts.destroy.Load(), counts.bytes.Load(), counts.lost.Load(), open,
				[3]uint64{counts.attributes[0].Load(), counts.attributes[1].Load(), counts.attributes[2].Load()}})
		}
		failed <- io.EOF
	}()
	for err := range failed {
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

func processTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

func groupsOf(text string) (groups []uint32) {
	for _, g := range strings.Split(text, ",") {
		n, _ := strconv.Atoi(g)
		groups = append(groups, uint32(n))
	}
	return groups
}

// netlinkSocket reads datagrams for as long as the process lives.
func netlinkSocket(groups []uint32, filter []bpf.Instruction, visit func(nfnetlink.Message)) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fd, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
		return fd, err
	}
	if filter != nil {
		raw, err := bpf.Assemble(filter)
		if err != nil {
			return fd, err
		}
		var code []unix.SockFilter
		for _, r := range raw {
			code = append(code, unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K})
		}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}); err != nil {
			return fd, err
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fd, err
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(g)); err != nil {
			return fd, err
		}
	}
	go func() {
		buf := make([]byte, 256<<10)
		for {
			n, err := unix.Read(fd, buf)
			switch {
			case errors.Is(err, unix.ENOBUFS):
				counts.lost.Add(1)
				continue
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil:
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			for m := range nfnetlink.Messages(buf[:n]) {
				visit(m)
			}
		}
	}()
	return fd, nil
}

// The attributes of conntrack messages (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctaTupleOrig = 1
	ctaStatus    = 3
	ctaID        = 12
	dstNAT       = 1 << 5
)

// sampled accepts one of n entries with DNAT, always the same ones: the kernel's identifier of an entry is a keyed
// hash, which each event of the entry has.
func sampled(n int) []bpf.Instruction {
	attribute := func(kind uint32) []bpf.Instruction {
		return []bpf.Instruction{
			bpf.LoadConstant{Dst: bpf.RegX, Val: kind},
			bpf.LoadConstant{Dst: bpf.RegA, Val: unix.NLMSG_HDRLEN + 4},
			bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
			bpf.TAX{},
			bpf.LoadIndirect{Off: 4, Size: 4},
		}
	}
	p := append(attribute(ctaStatus), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: dstNAT, SkipFalse: 7})
	p = append(p, attribute(ctaID)...)
	return append(p, bpf.JumpIf{Cond: bpf.JumpLessThan, Val: uint32(math.MaxUint32 / n), SkipFalse: 1},
		bpf.RetConstant{Val: math.MaxUint32}, bpf.RetConstant{Val: 0})
}

// record is what is remembered of a connection.
type record struct {
	protocol         byte
	original, reply  conntrack.Tuple
	started, replied time.Time
}

// events are read and remembered without a library.
func events(args []string) error {
	n, _ := strconv.Atoi(args[0])
	var filter []bpf.Instruction
	if n > 0 {
		filter = sampled(n)
	}
	open := map[uint32]record{}
	_, err := netlinkSocket(groupsOf(args[1]), filter, func(m nfnetlink.Message) {
		kindOfEvent := 1
		if m.Kind&0xff == 2 {
			kindOfEvent = 2
		} else if m.Flags&unix.NLM_F_CREATE != 0 {
			kindOfEvent = 0
		}
		var id uint32
		var r record
		var bytes uint64
		for kind, value := range m.Attributes().All() {
			counts.attributes[kindOfEvent].Or(1 << (kind &^ unix.NLA_F_NESTED))
			switch kind &^ unix.NLA_F_NESTED {
			case ctaTupleOrig:
				r.original, r.protocol = tuple(value)
			case 2:
				r.reply, _ = tuple(value)
			case ctaID:
				id = value.Number32()
			case 9, 10:
				bytes += value.Uint64(2)
			}
		}
		switch {
		case m.Kind&0xff == 2:
			counts.destroy.Add(1)
			counts.bytes.Add(int64(bytes))
			delete(open, id)
		case m.Flags&unix.NLM_F_CREATE != 0:
			counts.new.Add(1)
			r.started = time.Now()
			open[id] = r
		default:
			counts.update.Add(1)
			if old, ok := open[id]; ok && old.replied.IsZero() {
				old.replied = time.Now()
				open[id] = old
			}
		}
	})
	return err
}

func tuple(b nfnetlink.Attributes) (t conntrack.Tuple, protocol byte) {
	var src, dst netip.Addr
	ip, proto := b.Get(1), b.Get(2)
	for kind, value := range ip.All() {
		a, _ := netip.AddrFromSlice(value)
		if kind == 1 || kind == 3 {
			src = a
		} else {
			dst = a
		}
	}
	t = conntrack.Tuple{Src: netip.AddrPortFrom(src, port(proto.Get(2))),
		Dst: netip.AddrPortFrom(dst, port(proto.Get(3)))}
	return t, proto.Get(1)[0]
}

func port(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// eventsLibrary is events with github.com/ti-mo/conntrack, which can have no filter.
func eventsLibrary(args []string) error {
	c, err := timo.Dial(nil)
	if err != nil {
		return err
	}
	if err := c.SetReadBuffer(8 << 20); err != nil {
		return err
	}
	var groups []netfilter.NetlinkGroup
	for _, g := range groupsOf(args[1]) {
		groups = append(groups, netfilter.NetlinkGroup(g))
	}
	list := make(chan timo.Event, 1024)
	failed, err := c.Listen(list, 1, groups)
	if err != nil {
		return err
	}
	open := map[uint32]*timo.Flow{}
	go func() {
		for {
			select {
			case err := <-failed:
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			case e := <-list:
				switch e.Type {
				case timo.EventNew:
					counts.new.Add(1)
					open[e.Flow.ID] = e.Flow
				case timo.EventDestroy:
					counts.destroy.Add(1)
					counts.bytes.Add(int64(e.Flow.CountersOrig.Bytes + e.Flow.CountersReply.Bytes))
					delete(open, e.Flow.ID)
				default:
					counts.update.Add(1)
				}
			}
		}
	}()
	return nil
}

// group is that of the rule with log.
const group = 7

// logs are read without a library. The argument "ct" asks for the attribute of connection tracking.
func logs(args []string) error {
	open := map[conntrack.Tuple]record{}
	fd, err := netlinkSocket(nil, nil, func(m nfnetlink.Message) {
		if m.Kind>>8 != unix.NFNL_SUBSYS_ULOG || m.Kind&0xff != 0 {
			return
		}
		var way conntrack.Tuple
		r := record{started: time.Now()}
		var seen uint64
		for kind, value := range m.Attributes().All() {
			seen |= 1 << (kind &^ unix.NLA_F_NESTED)
			switch kind &^ unix.NLA_F_NESTED {
			case 9: // NFULA_PAYLOAD
				if len(value) >= 24 {
					src, _ := netip.AddrFromSlice(value[12:16])
					dst, _ := netip.AddrFromSlice(value[16:20])
					way = conntrack.Tuple{Src: netip.AddrPortFrom(src, port(value[20:])),
						Dst: netip.AddrPortFrom(dst, port(value[22:]))}
					r.original, r.protocol = way, value[9]
				}
			case 18: // NFULA_CT
				r.original, r.protocol = tuple(value.Get(ctaTupleOrig))
				counts.bytes.Add(1)
			}
		}
		back := conntrack.Tuple{Src: way.Dst, Dst: way.Src}
		if first, ok := open[back]; ok {
			counts.attributes[1].Or(seen)
			counts.update.Add(1)
			first.replied = r.started
			open[back] = first
			return
		}
		counts.attributes[0].Or(seen)
		counts.new.Add(1)
		if len(open) > 4096 {
			clear(open)
		}
		open[r.original] = r
	})
	if err != nil {
		return err
	}
	configure := func(attribute uint16, value ...byte) error {
		var e nfnetlink.Encoder
		at := e.BeginMessage(unix.NFNL_SUBSYS_ULOG<<8|1, unix.NLM_F_REQUEST, 1, unix.AF_UNSPEC)
		binary.BigEndian.PutUint16(e.B[at+18:], group)
		e.Bytes(attribute, value)
		e.EndMessage(at)
		return unix.Sendto(fd, e.B, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	// Bind; copy 64 bytes; wait at most 0.1 s, for at most 64 messages.
	steps := [][]byte{{1, 1}, {2, 0, 0, 0, 64, 2, 0}, {4, 0, 0, 0, 10}, {5, 0, 0, 0, 64}}
	if len(args) > 0 && args[0] == "ct" {
		steps = append(steps, []byte{6, 0, 4}) // NFULNL_CFG_F_CONNTRACK
	}
	for _, s := range steps {
		if err := configure(uint16(s[0]), s[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func logsLibrary([]string) error {
	l, err := nflog.Open(&nflog.Config{Group: group, Copymode: nflog.CopyPacket, Bufsize: 64})
	if err != nil {
		return err
	}
	return l.RegisterWithErrorFunc(context.Background(), func(nflog.Attribute) int {
		counts.new.Add(1)
		return 0
	}, func(err error) int {
		var op *netlink.OpError
		if errors.As(err, &op) && op.Timeout() {
			return 0
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	})
}

// dumps are of all entries with DNAT, each second.
func dumps([]string) error {
	table, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return err
	}
	go func() {
		for range time.Tick(time.Second) {
			err := table.Flows(context.Background(), conntrack.Filter{Status: conntrack.DstNAT, Mask: conntrack.DstNAT},
				func(conntrack.Flow) error { counts.new.Add(1); return nil })
			if err != nil {
				counts.lost.Add(1)
			}
		}
	}()
	return nil
}

// gets asks for each of the entries by its tuple, once.
func gets([]string) error {
	table, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return err
	}
	start := processTime()
	for i := range most {
		_, found, err := table.Find(context.Background(), service.TCP, conntrack.Tuple{
			Src: netip.AddrPortFrom(clientAddr, uint16(firstPort+i)), Dst: netip.AddrPortFrom(serviceAddr, 80)})
		if err != nil || !found {
			return fmt.Errorf("entry %d: found %v: %w", i, found, err)
		}
		counts.new.Add(1)
	}
	counts.bytes.Store(int64(processTime() - start))
	return nil
}

// listener is the process.
type listener struct {
	t    testing.TB
	ns   *testnet.Namespace
	spec string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	// last is what settled returned last.
	last report
}

func (s *site) listen(spec string) *listener {
	s.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(slices.Clone(os.Environ()), listenerVariable+"="+spec)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testnet.Require(s, err)
	out, err := cmd.StdoutPipe()
	testnet.Require(s, err)
	testnet.Require(s, s.node.Start(cmd))
	l := &listener{t: s, ns: s.node, spec: spec, cmd: cmd, in: in, out: json.NewDecoder(out)}
	var ready report
	if err := l.out.Decode(&ready); err != nil {
		s.Fatalf("listener %q: %v", spec, err)
	}
	return l
}

func (l *listener) report() (r report) {
	l.t.Helper()
	fmt.Fprintln(l.in)
	if err := l.out.Decode(&r); err != nil {
		l.t.Fatal(err)
	}
	return r
}

// settled is the report of a listener that has read all that the kernel has for it, and has asked for all that it
// follows; one that dumps has done so since the last time. Nobody tells of that, so it asks.
func (l *listener) settled() report {
	l.t.Helper()
	before := report{New: -1}
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		queued := l.queued()
		r := l.report()
		same := [3]int64{r.New, r.Update, r.Destroy} == [3]int64{before.New, before.Update, before.Destroy}
		if queued == 0 && r.Open == 0 && same && (l.spec != "dump" || r.New > l.last.New) {
			l.last = r
			return r
		}
		if before = r; time.Since(start) > 10*time.Second {
			l.t.Fatalf("the listener has %d queued messages and bytes, and has told %+v", queued, r)
		}
	}
}

// queued is how many messages wait in the node's groups of nfnetlink_log, and bytes in its sockets of netfilter.
func (l *listener) queued() (n int) {
	l.t.Helper()
	add := func(file string, column int, counts func(fields []string) bool) error {
		text, err := os.ReadFile("/proc/thread-self/net/" + file)
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > column && counts(fields) {
				more, _ := strconv.Atoi(fields[column])
				n += more
			}
		}
		return err
	}
	testnet.Require(l.t, l.ns.Do(func() error {
		// group, port, queue length; and socket, protocol, port, groups, bytes to read.
		return errors.Join(add("netfilter/nfnetlink_log", 2, func([]string) bool { return true }),
			add("netlink", 4, func(f []string) bool { return f[1] == strconv.Itoa(unix.NETLINK_NETFILTER) }))
	}))
	return n
}

func (l *listener) stop() {
	l.t.Helper()
	l.in.Close()
	if err := l.cmd.Wait(); err != nil {
		l.t.Fatal(err)
	}
}
