package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	timo "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"nftproxy/internal/service"
	"nftproxy/internal/testnet"
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
	// One of another ID has taken the place of what was seen.
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
	for port := range uint16(500) { // several datagrams' worth
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
	}{{Filter{}, 501}, {Filter{Status: Assured, Mask: Assured}, 500}, {Filter{Mask: Assured}, 1}, {Filter{Mask: DstNAT}, 501}} {
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

// The kernel does what the filter says, and where it does not, as before Linux
// 5.15, Flows does.
func TestTableFiltersTwice(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table, creator := open(t, ns), dialCreator(t, ns)
	src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	create(t, creator, timo.NewFlow(17, timo.StatusConfirmed, src, dst, 1, 53, 600, 0))
	create(t, creator, timo.NewFlow(17, timo.StatusConfirmed|timo.StatusSeenReply|timo.StatusAssured, src, dst, 2, 53, 600, 0))
	unassured := Filter{Mask: Assured}
	for _, test := range []struct {
		by              string
		request, filter Filter
	}{{"the kernel", unassured, Filter{}}, {"Flows", Filter{}, unassured}} {
		var ports []uint16
		err := table.dump(t.Context(), dumpRequest(test.request), test.filter, func(f Flow) error {
			ports = append(ports, f.Original.Src.Port())
			return nil
		})
		if !slices.Equal(ports, []uint16{1}) || err != nil {
			t.Errorf("filtered by %s: flows from ports %v, %v, want 1 only", test.by, ports, err)
		}
	}
}

// Without the capability both calls say so, and what is needed.
func TestTableWithoutCapability(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "node")
	table := open(t, ns)
	listed, deleted := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			listed <- err
			deleted <- err
			return
		}
		listed <- table.Flows(t.Context(), Filter{}, func(Flow) error { return nil })
		_, err := table.Delete(t.Context(), []Flow{flow(service.UDP, "10.96.0.1:80", 0)})
		deleted <- err
	}()
	for what, err := range map[string]error{"Flows": <-listed, "Delete": <-deleted} {
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("%s() = %v, want EPERM with what is needed", what, err)
		}
	}
	if list := flows(t, table, Filter{}); len(list) > 0 { // the sockets are in step
		t.Errorf("flows: %v", list)
	}
}
