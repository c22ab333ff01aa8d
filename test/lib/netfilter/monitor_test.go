package netfilter_test

import (
	"net/netip"
	"testing"
	"time"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// patience bounds the wait for a notice.
const patience = time.Minute

type fixture struct {
	*testing.T
	monitor *netfilter.Monitor
	conn    *kernel.Conn
	set     *nft.Set
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	ns := testnet.NamespaceForTest(t, "monitor")
	conn, err := kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: ns.Fd()}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	f := &fixture{T: t, conn: conn, set: &nft.Set{Name: "endpoints", Key: nft.Fields{nft.Index},
		Data: nft.Fields{nft.Daddr, nft.Dport}}}
	f.monitor, err = netfilter.Listen(ns.Fd())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.monitor.Close() })
	for _, family := range nft.Families() {
		f.applyOps(nft.AddTable{Table: table(family)}, nft.AddSet{Table: table(family), Set: f.set})
	}
	return f
}

func table(f nft.Family) nft.TableID { return nft.TableID{Family: f, Name: "monitored"} }

func (f *fixture) applyOps(ops ...nft.Op) {
	f.Helper()
	if err := f.conn.Apply(nft.Batch{Ops: ops}); err != nil {
		f.Fatal(err)
	}
}

// element has the address as data, under the key index.
func (f *fixture) element(index uint32, a netip.Addr) (nft.TableID, []nft.OwnedElement) {
	family := nft.IPv4
	if a.Is6() {
		family = nft.IPv6
	}
	return table(family), []nft.OwnedElement{{Element: nft.Element{
		Set: f.set.Name, Key: nft.Value(nft.AppendIndex(nil, index)), Data: nft.Value(nft.AppendPort(a.AsSlice(), 80)),
	}}}
}

func (f *fixture) addElement(index uint32, a netip.Addr) {
	f.Helper()
	id, elements := f.element(index, a)
	f.applyOps(nft.AddElements{Table: id, Set: f.set, Elements: elements})
}

func (f *fixture) deleteElement(index uint32, a netip.Addr) {
	f.Helper()
	id, elements := f.element(index, a)
	f.applyOps(nft.DeleteElements{Table: id, Set: f.set, Elements: elements})
}

func (f *fixture) wantArrival(what string, arrived <-chan time.Time, after time.Time) time.Time {
	f.Helper()
	select {
	case at := <-arrived:
		if at.Before(after) {
			f.Errorf("%s: arrived %v before", what, after.Sub(at))
		}
		return at
	case <-time.After(patience):
		f.Fatalf("%s: not seen within %v", what, patience)
		return time.Time{}
	}
}

func TestExpect(t *testing.T) {
	f := newFixture(t)
	one, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	near := netip.MustParseAddr("fd00::2") // begins with the same bytes
	nearby := f.monitor.Expect(near)
	both := f.monitor.Expect(one, other)
	single := f.monitor.Expect(one)
	start := time.Now()
	f.addElement(1, one)
	f.wantArrival("the IPv4 address", single, start)
	select {
	case <-both:
		t.Error("the second of two addresses is not there yet")
	default:
	}
	middle := time.Now()
	f.addElement(1, other)
	f.wantArrival("the second of two addresses", both, middle)

	gone := f.monitor.Expect(one)
	f.deleteElement(1, one)
	f.wantArrival("the deletion", gone, middle)
	select {
	case <-nearby:
		t.Error("an address that was never there")
	default:
	}
	f.addElement(2, near)
	f.wantArrival("the other of the same prefix", nearby, middle)
	if n := f.monitor.Lost(); n != 0 {
		t.Errorf("lost %d", n)
	}
}

// TestLast: every notice counts, even one without an expected address.
func TestLast(t *testing.T) {
	f := newFixture(t)
	f.addElement(1, netip.MustParseAddr("10.0.0.1"))
	seen := f.monitor.Expect(netip.MustParseAddr("10.0.0.2"))
	f.addElement(2, netip.MustParseAddr("10.0.0.2"))
	f.wantArrival("the second address", seen, time.Time{})
	before, next := f.monitor.Last()
	if before.IsZero() {
		t.Error("no notice has arrived")
	}
	start := time.Now()
	f.addElement(3, netip.MustParseAddr("10.0.0.3"))
	select {
	case <-next:
	case <-time.After(patience):
		t.Fatal("no notice")
	}
	// More notices of the earlier transaction may come first.
	for last := before; !last.After(start); last, next = f.monitor.Last() {
		select {
		case <-next:
		case <-time.After(patience):
			t.Fatalf("no notice after the change, the last %v before", start.Sub(last))
		}
	}
}

// TestForget: an address that was given up does not arrive; one that is expected later does.
func TestForget(t *testing.T) {
	f := newFixture(t)
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	given := f.monitor.Expect(a)
	f.monitor.Forget()
	later := f.monitor.Expect(b)
	start := time.Now()
	f.addElement(1, a)
	f.addElement(2, b)
	f.wantArrival("what is expected", later, start)
	select {
	case <-given:
		t.Error("arrived although it was given up")
	default:
	}
}
