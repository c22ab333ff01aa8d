package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/proxy"
	model "nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	compiler "nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// TestLoopWithoutMemory: the kernel has no memory for one large Service. The loop leaves it
// out, and all others are in force. It follows when the kernel has memory.
func TestLoopWithoutMemory(t *testing.T) {
	for name, late := range map[string]bool{"in the first program": false, "to tables in use": true} {
		t.Run(name, func(t *testing.T) { loopWithoutMemory(t, late) })
	}
}

func loopWithoutMemory(t *testing.T, late bool) {
	if testing.Short() {
		t.Skip("each allocation at the limit takes its time")
	}
	memory := newMemoryGroup(t, 4<<20)
	_, conn := open(t)
	conn.AroundSend(memory.runWithin)
	l := runLoop(t, conn)
	for i := range 100 {
		l.services.Set(gen.UniformService(i, 10))
	}
	giant := giantService(20, 2500)
	if late {
		l.publish("without the large one")
		l.services.Set(gen.UniformService(100, 10))
	}
	l.services.Set(giant)
	l.publish("with the large one", string(giant.Name))
	l.services.Set(gen.UniformService(101, 10))
	l.publish("another comes", string(giant.Name))
	t.Logf("%d KiB in use without the large one", memory.usedBytes()>>10)
	memory.setLimit(1 << 30)
	l.publish("with memory")
	t.Logf("%d KiB in use with the large one", memory.usedBytes()>>10)
}

// memoryLoop is a loop that writes to a kernel.
type memoryLoop struct {
	*testing.T
	conn     *kernel.Conn
	services *snapshots.Builder
	mailbox  *model.Mailbox
	syncs    chan proxy.Sync
}

func runLoop(t *testing.T, conn *kernel.Conn) *memoryLoop {
	l := &memoryLoop{t, conn, snapshots.NewBuilder(gen.PlainNode()), model.NewMailbox(), make(chan proxy.Sync)}
	cfg := compiler.Config{Table: tableName,
		Settings: model.Settings{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	c := proxy.DefaultConfig()
	c.CheckPeriod, c.Jitter = 0, func() float64 { return 0 }
	ctx, cancel := context.WithCancel(t.Context())
	loop := proxy.New(c, conn, compiler.NewCompiler(cfg).Compile, func(s proxy.Sync) {
		select {
		case l.syncs <- s:
		case <-ctx.Done():
		}
	})
	ended := make(chan error)
	go func() { ended <- loop.Run(ctx, l.mailbox) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l
}

// publish publishes the services. It waits until all are in force but those that
// the loop leaves out for lack of memory.
func (l *memoryLoop) publish(what string, left ...string) {
	l.Helper()
	want := l.services.Snapshot()
	l.mailbox.Put(model.Update{Snapshot: want, Since: time.Now()})
	var s proxy.Sync
	for limit := time.After(time.Minute); s.Snapshot != want || len(s.Quarantined) > len(left); {
		select {
		case s = <-l.syncs:
		case <-limit:
			l.Fatalf("%s: refused %v, err %v", what, s.Quarantined, s.Err)
		}
		if s.Snapshot == want && s.Err != nil {
			l.Fatalf("%s: %v", what, s.Err)
		}
	}
	applied := &nft.Program{IPv4: s.Program.IPv4.Clone(), IPv6: s.Program.IPv6}
	for _, name := range left {
		if err := s.Quarantined[name]; !errors.Is(err, unix.ENOMEM) {
			l.Errorf("%s: %s is refused for %v", what, name, err)
		}
		applied.IPv4.Parts = applied.IPv4.Parts.Delete(name)
	}
	m, err := l.conn.Read(applied)
	must(l.T, err)
	if batch, _ := nft.Adopt(m, applied).Plan(applied, time.Now()); !batch.Empty() {
		l.Errorf("%s: %d objects lack", what, batch.Size())
	}
}

// giantService has this many ports, and each port has this many endpoints of its own.
func giantService(ports, endpoints int) *model.Service {
	svc := &model.Service{Name: model.NewName("default", "giant"),
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.9.9")}}
	for n := range ports {
		p := model.Port{Name: fmt.Sprint("p", n), Protocol: model.TCP, Port: uint16(1 + n)}
		var list []model.Endpoint
		for i := range endpoints {
			addr := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
			list = append(list, model.Endpoint{Addr: netip.AddrPortFrom(addr, uint16(1+n)), Ready: true, Serving: true})
		}
		p.Endpoints = model.MergeEndpoints(list)
		svc.Ports = append(svc.Ports, p)
	}
	return svc
}

// memoryGroup is a memory cgroup in which the kernel's allocations fail at a limit.
// Allocations of nftables count for the thread that sends a batch. Version 2 of cgroups
// kills processes instead, and has no limits for threads.
type memoryGroup struct {
	*testing.T
	// dir is the group's directory, and back the directory of the process's own group.
	dir, back string
}

func newMemoryGroup(t *testing.T, size int) *memoryGroup {
	t.Helper()
	const root = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(filepath.Join(root, "memory.oom_control")); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and the memory controller of cgroup version 1")
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	must(t, err)
	m := &memoryGroup{t, filepath.Join(root, fmt.Sprintf("nftproxy-test-%d", os.Getpid())),
		filepath.Join(root, memoryPath(string(own)))}
	must(t, os.Mkdir(m.dir, 0o755))
	t.Cleanup(func() {
		if err := os.Remove(m.dir); err != nil {
			t.Error(err)
		}
	})
	m.setLimit(size)
	m.writeFile("memory.oom_control", "1")
	return m
}

// runWithin calls the function with the thread in the group. The function makes only
// the system call: the process dies if the kernel has no memory for a page table.
func (m *memoryGroup) runWithin(call func()) {
	thread := []byte(fmt.Sprint(unix.Gettid()))
	if err := os.WriteFile(filepath.Join(m.dir, "tasks"), thread, 0o644); err != nil {
		m.Error(err)
		return
	}
	call()
	if err := os.WriteFile(filepath.Join(m.back, "tasks"), thread, 0o644); err != nil {
		m.Error(err)
	}
}

// memoryPath finds the path in the lines of /proc/self/cgroup.
func memoryPath(lines string) string {
	for line := range strings.SplitSeq(lines, "\n") {
		if _, path, found := strings.Cut(line, ":memory:"); found {
			return path
		}
	}
	return "/"
}

func (m *memoryGroup) setLimit(size int) { m.writeFile("memory.limit_in_bytes", fmt.Sprint(size)) }

func (m *memoryGroup) writeFile(file, value string) {
	m.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, file), []byte(value), 0o644); err != nil {
		m.Fatal(err)
	}
}

// usedBytes is how much memory the group uses, in bytes.
func (m *memoryGroup) usedBytes() int {
	m.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, "memory.usage_in_bytes"))
	if err != nil {
		m.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		m.Fatal(err)
	}
	return n
}
