package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	timo "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nfnetlink"
	"nftproxy/test/lib/testnet"
)

func open(t testing.TB, ns *testnet.Namespace) *Table {
	t.Helper()
	table, err := Open(Config{NetNS: ns.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return table
}

func flows(t testing.TB, table *Table, filter Filter) []Flow {
	t.Helper()
	var list []Flow
	err := table.Flows(t.Context(), filter, func(f Flow) error {
		list = append(list, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestTableDelete(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table, creator := open(t, ns), dialCreator(t, ns)
	src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	src6, dst6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	for port := range uint16(2*deleteBatch + 10) {
		create(t, creator, timo.NewFlow(17, timo.StatusConfirmed, src, dst, 1000+port, 53, 600, 0))
	}
	for _, protocol := range []uint8{6, 47, 132} {
		create(t, creator, timo.NewFlow(protocol, timo.StatusConfirmed, src, dst, 1000, 80, 600, 0))
		create(t, creator, timo.NewFlow(protocol, timo.StatusConfirmed, src6, dst6, 1000, 80, 600, 0))
	}
	zoned := timo.NewFlow(17, timo.StatusConfirmed, src, dst, 1000, 53, 600, 0)
	zoned.Zone = 7
	create(t, creator, zoned)

	all := flows(t, table, Filter{})
	if want := 2*deleteBatch + 17; len(all) != want {
		t.Fatalf("%d flows, want %d", len(all), want)
	}
	remove := func(list []Flow, want int) {
		t.Helper()
		if n, err := table.Delete(t.Context(), list); n != want || err != nil {
			t.Errorf("Delete() = %d, %v, want %d", n, err, want)
		}
	}
	// An entry with another ID has taken the place of the one that was read.
	changed := slices.Clone(all)
	for i := range changed {
		changed[i].ID++
	}
	remove(changed, 0)
	inZone := slices.IndexFunc(all, func(f Flow) bool { return f.Zone == 7 })
	remove(all[inZone:inZone+1], 1)
	if left := flows(t, table, Filter{}); len(left) != len(all)-1 {
		t.Errorf("%d flows left, want all but the one of zone 7: %d", len(left), len(all)-1)
	}
	remove(all, len(all)-1)
	remove(all, 0)
	if left := flows(t, table, Filter{}); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func dialCreator(t testing.TB, ns *testnet.Namespace) *timo.Conn {
	t.Helper()
	c, err := timo.Dial(&netlink.Config{NetNS: ns.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func create(t testing.TB, c *timo.Conn, f timo.Flow) {
	t.Helper()
	if err := c.Create(f); err != nil {
		t.Fatalf("create %+v: %v", f, err)
	}
}

func TestTableFlows(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table, creator := open(t, ns), dialCreator(t, ns)
	src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	const assured = timo.StatusConfirmed | timo.StatusSeenReply | timo.StatusAssured
	for port := range uint16(500) { // more than one datagram holds
		create(t, creator, timo.NewFlow(17, assured, src, dst, 1000+port, 53, 600, 0))
	}
	create(t, creator, timo.NewFlow(17, timo.StatusConfirmed, src, dst, 1, 53, 600, 0))

	enough := errors.New("enough")
	seen := 0
	err := table.Flows(t.Context(), Filter{}, func(Flow) error {
		if seen++; seen == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || seen != 3 {
		t.Errorf("Flows() = %v after %d flows, want what yield returned after 3", err, seen)
	}
	for _, test := range []struct {
		filter Filter
		want   int
	}{{Filter{}, 501}, {Filter{Status: Assured, Mask: Assured}, 500}, {Filter{Mask: Assured}, 1},
		{Filter{Mask: DstNAT}, 501}} {
		if got := flows(t, table, test.filter); len(got) != test.want {
			t.Errorf("%d flows by %+v, want %d", len(got), test.filter, test.want)
		}
	}
	got := flows(t, table, Filter{Mask: Assured})[0]
	if got.ID == 0 {
		t.Error("flow without ID")
	}
	if got.Timeout <= 0 || got.Timeout > 600*time.Second {
		t.Errorf("flow has %v left of 600 s", got.Timeout)
	}
	got.ID, got.Timeout = 0, 0
	from, to := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:53")
	const confirmed = 1 << 3
	want := Flow{Protocol: service.UDP, Original: Tuple{from, to}, Reply: Tuple{to, from}, Status: confirmed}
	if got != want {
		t.Errorf("flow is %v %#x, want %v %#x", got, uint32(got.Status), want, uint32(want.Status))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := table.Flows(ctx, Filter{}, func(Flow) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("Flows() = %v with a context that is done", err)
	}
}

// A deletion that the kernel refuses does not hold up the others, in its own batch or in a
// later one.
func TestTableDeleteGoesOn(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table, creator := open(t, ns), dialCreator(t, ns)
	src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for port := range uint16(2 * deleteBatch) {
		create(t, creator, timo.NewFlow(17, timo.StatusConfirmed, src, dst, 1000+port, 53, 600, 0))
	}
	all := flows(t, table, Filter{})
	refused := all[0]
	refused.Original.Dst = netip.AddrPortFrom(netip.MustParseAddr("fd00::2"), 53) // A tuple cannot have two families.
	n, err := table.Delete(t.Context(), slices.Insert(slices.Clone(all), 1, refused))
	if n != len(all) || !errors.Is(err, unix.ERANGE) {
		t.Errorf("Delete() = %d, %v, want %d and ERANGE", n, err, len(all))
	}
	if left := flows(t, table, Filter{}); len(left) > 0 {
		t.Errorf("%d flows left", len(left))
	}
}

// cut is system calls that read only the beginning of a datagram.
type cut struct{ nfnetlink.Syscalls }

func (c cut) Read(fd int, b []byte) (int, error) {
	return c.Syscalls.Read(fd, b[:unix.SizeofNlMsghdr+4])
}

// A dump that was not read to its end does not disturb the next one.
func TestTableFlowsAfterBrokenReceive(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table, creator := open(t, ns), dialCreator(t, ns)
	for port := range uint16(1000) { // more than a socket's memory holds
		create(t, creator, timo.NewFlow(17, timo.StatusConfirmed, netip.MustParseAddr("10.0.0.1"),
			netip.MustParseAddr("10.0.0.2"), 1000+port, 53, 600, 0))
	}
	interrupt := func() {
		t.Helper()
		s := table.dumps.Socket
		s.Calls = cut{s.Calls}
		if err := table.Flows(t.Context(), Filter{}, func(Flow) error { return nil }); !errors.Is(err,
			nfnetlink.ErrTruncated) {
			t.Fatalf("Flows() = %v, want it truncated", err)
		}
		s.Calls = nfnetlink.Kernel{}
	}
	interrupt()
	if got := flows(t, table, Filter{}); len(got) != 1000 {
		t.Errorf("%d flows after a broken dump, want 1000", len(got))
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		interrupt()
		flows(t, table, Filter{})
	}
	if after, err := os.ReadDir("/proc/self/fd"); err != nil || len(after) > len(fds) {
		t.Errorf("%d file descriptors, %d before: %v", len(after), len(fds), err)
	}
}

// The kernel filters, and Flows filters where the kernel does not, as before Linux 5.8 or
// 5.15. The result equals that of a dump of everything, filtered by Selects.
func TestTableFilters(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table, creator := open(t, ns), dialCreator(t, ns)
	src, src6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	dsts := []netip.Addr{
		netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"),
		netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3"),
	}
	for _, dst := range dsts {
		from := src
		if dst.Is6() {
			from = src6
		}
		for _, port := range []uint16{53, 80} {
			for _, protocol := range []uint8{6, 17, 132} {
				create(t, creator, timo.NewFlow(protocol, timo.StatusConfirmed, from, dst, 1, port, 600, 0))
				create(t, creator, timo.NewFlow(protocol, timo.StatusConfirmed|timo.StatusSeenReply|timo.StatusAssured, from, dst,
					2, port, 600, 0))
			}
		}
	}
	zoned := timo.NewFlow(17, timo.StatusConfirmed, src, dsts[0], 3, 53, 600, 0)
	zoned.Zone = 7
	create(t, creator, zoned)

	everything := flows(t, table, Filter{})
	// Linux before 5.15 does not compare the status.
	comparesStatus := len(dump(t, table, Filter{Mask: Assured}, Filter{})) < len(everything)
	t.Logf("the kernel compares the status: %v", comparesStatus)
	for _, test := range []struct {
		filter Filter
		want   int
		// told is the part of the filter that the kernel compares. v6 says that it
		// compares the family IPv6 but no address.
		told Filter
		v6   bool
	}{
		{filter: Filter{}, want: 49},
		{filter: Filter{Mask: Assured}, want: 25, told: Filter{Mask: Assured}},
		{filter: Filter{Protocol: service.UDP}, want: 17, told: Filter{Protocol: service.UDP}},
		{filter: Filter{Dst: dsts[0]}, want: 13, told: Filter{Dst: dsts[0]}},
		{filter: Filter{Dst: dsts[3]}, want: 12, v6: true},
		{filter: Filter{Port: 53}, want: 25},
		{filter: Filter{Dst: dsts[1], Port: 53}, want: 6, told: Filter{Dst: dsts[1]}},
		{filter: Filter{Protocol: service.TCP, Port: 80}, want: 8, told: Filter{Protocol: service.TCP, Port: 80}},
		{
			filter: Filter{Protocol: service.UDP, Dst: dsts[0], Port: 53}, want: 3,
			told: Filter{Protocol: service.UDP, Dst: dsts[0], Port: 53},
		},
		{filter: Filter{Protocol: service.SCTP, Dst: dsts[1], Port: 80}, want: 2, told: Filter{Protocol: service.SCTP,
			Dst: dsts[1]}},
		{filter: Filter{Protocol: service.SCTP, Dst: dsts[2], Port: 80}, want: 2, told: Filter{Protocol: service.SCTP},
			v6: true},
		{
			filter: Filter{Status: Assured, Mask: Assured, Protocol: service.UDP, Dst: dsts[2], Port: 53}, want: 1,
			told: Filter{Status: Assured, Mask: Assured, Protocol: service.UDP, Port: 53}, v6: true,
		},
		{
			filter: Filter{Protocol: service.UDP, Endpoint: netip.AddrPortFrom(dsts[0], 53)}, want: 3,
			told: Filter{Protocol: service.UDP, Endpoint: netip.AddrPortFrom(dsts[0], 53)},
		},
		{
			filter: Filter{Mask: Assured, Protocol: service.TCP, Endpoint: netip.AddrPortFrom(dsts[2], 80)}, want: 1,
			told: Filter{Mask: Assured, Protocol: service.TCP, Port: 80}, v6: true,
		},
		{filter: Filter{Protocol: icmp, Port: 53}, want: 0, told: Filter{Protocol: icmp}},
		{filter: Filter{Dst: src}, want: 0, told: Filter{Dst: src}},
	} {
		t.Run(fmt.Sprintf("%v %v %d %v %v", test.filter.Protocol, test.filter.Dst, test.filter.Port, test.filter.Endpoint,
			test.filter.Mask), func(t *testing.T) {
			want := selected(everything, test.filter.Selects)
			if len(want) != test.want {
				t.Errorf("Selects has %d flows, want %d", len(want), test.want)
			}
			if diff := cmp.Diff(want, entries(flows(t, table, test.filter))); diff != "" {
				t.Errorf("Flows() (-want +got):\n%s", diff)
			}
			if !comparesStatus {
				test.told.Mask, test.told.Status = 0, 0
			}
			told := selected(everything, func(f *Flow) bool { return test.told.Selects(f) && (!test.v6 || f.Family() == ip.V6) })
			if diff := cmp.Diff(told, entries(dump(t, table, test.filter, Filter{}))); diff != "" {
				t.Errorf("filtered by the kernel alone (-want +got):\n%s", diff)
			}
			ignored := entries(dump(t, table, Filter{}, test.filter))
			if diff := cmp.Diff(want, ignored); diff != "" {
				t.Errorf("from a kernel that ignores the filter (-want +got):\n%s", diff)
			}
		})
	}
}

func selected(list []Flow, by func(*Flow) bool) map[entry]Status {
	return entries(slices.DeleteFunc(slices.Clone(list), func(f Flow) bool { return !by(&f) }))
}

// dump returns the flows that the kernel selects by the filter told, and the package by filter.
func dump(t *testing.T, table *Table, told, filter Filter) []Flow {
	t.Helper()
	var list []Flow
	for _, family := range told.families() {
		err := table.dump(t.Context(), family, told.attributes(), filter, func(f Flow) error {
			list = append(list, f)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// The fields of a flow besides its tuples.
func TestTableFlowDetails(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table, creator := open(t, ns), dialCreator(t, ns)
	before := time.Now()
	if err := ns.Sysctl("net.netfilter.nf_conntrack_timestamp", "1"); err != nil {
		t.Fatal(err)
	}
	f := timo.NewFlow(6, timo.StatusConfirmed|timo.StatusSeenReply|timo.StatusAssured,
		netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), 1, 80, 3600, 0)
	f.ProtoInfo.TCP = &timo.ProtoInfoTCP{State: uint8(TCPCloseWait)}
	create(t, creator, f)
	list := flows(t, table, Filter{})
	if len(list) != 1 {
		t.Fatalf("flows: %v", list)
	}
	got := list[0]
	if got.TCPState != TCPCloseWait || got.Timeout <= 0 || got.Timeout > time.Hour || got.Timeout%time.Second != 0 ||
		got.Start.Before(before) || got.Start.After(time.Now()) {
		t.Errorf("state %q, timeout %v, start %v; want close-wait, an hour, and between %v and now", got.TCPState,
			got.Timeout, got.Start, before)
	}
}

func TestTableCount(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table, creator := open(t, ns), dialCreator(t, ns)
	wantLimit, err := ns.ReadSysctl("net.netfilter.nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	for want := range 3 {
		entries, limit, err := table.Count(t.Context())
		if entries != want || fmt.Sprint(limit) != wantLimit || err != nil {
			t.Errorf("Count() = %d, %d, %v, want %d of %s", entries, limit, err, want, wantLimit)
		}
		create(t, creator, timo.NewFlow(17, timo.StatusConfirmed, netip.MustParseAddr("10.0.0.1"),
			netip.MustParseAddr("10.0.0.2"), uint16(want), 53, 600, 0))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := table.Count(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Count() = %v with a context that is done", err)
	}
}

// Without the capability, every call fails and names the capability.
func TestTableWithoutCapability(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table := open(t, ns)
	listed, deleted, counted := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // There is no unlock: the thread ends with the goroutine.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			listed <- err
			deleted <- err
			counted <- err
			return
		}
		listed <- table.Flows(t.Context(), Filter{}, func(Flow) error { return nil })
		_, err := table.Delete(t.Context(), []Flow{flow(service.UDP, "10.96.0.1:80", 0)})
		deleted <- err
		_, _, err = table.Count(t.Context())
		counted <- err
	}()
	for what, err := range map[string]error{"Flows": <-listed, "Delete": <-deleted, "Count": <-counted} {
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("%s() = %v, want EPERM with what is needed", what, err)
		}
	}
	if list := flows(t, table, Filter{}); len(list) > 0 { // The sockets have read all answers.
		t.Errorf("flows: %v", list)
	}
}
