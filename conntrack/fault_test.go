package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nfnetlink"
	"nftproxy/test/lib/netlinkfault"
	"nftproxy/test/lib/testnet"
)

// faulty is a table of a real kernel whose answers go wrong on command, and one without faults.
type faulty struct {
	injector     *netlinkfault.Injector
	table, other *Table
	ns           *testnet.Namespace
}

// faultyFlows is how many flows there are: a few datagrams of a dump, and two batches of deletions.
// The first staleFlows of them lead to an endpoint that no Service has.
const (
	faultyFlows = deleteBatch + 100
	staleFlows  = 50
)

func openFaulty(t *testing.T) *faulty {
	t.Helper()
	f := &faulty{injector: netlinkfault.New(netlinkfault.None), ns: testnet.NamespaceForTest(t, "node")}
	var err error
	f.table, err = Open(Config{NetNS: f.ns.Fd(), Syscalls: func() nfnetlink.Syscalls { return f.injector.Wire() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.table.Close() })
	f.other = open(t, f.ns)
	return f
}

// fill creates the flows that are missing: none, the stale ones, or all.
func (f *faulty) fill(t *testing.T) {
	t.Helper()
	have := entries(flows(t, f.other, Filter{}))
	missing := 0
	for ; missing < faultyFlows; missing++ {
		if want := faultyFlow(missing); have[entry{want.Protocol, want.Original}] != 0 {
			break
		}
	}
	fill(t, f.ns, 0, missing, faultyFlow)
}

func faultyFlow(i int) Flow {
	client := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(10000+i))
	endpoint := "10.244.0.1:53"
	if i < staleFlows {
		endpoint = "10.244.0.9:53"
	}
	return Flow{
		Protocol: service.UDP,
		Original: Tuple{client, netip.MustParseAddrPort("10.96.0.1:53")},
		Reply:    Tuple{netip.MustParseAddrPort(endpoint), client},
	}
}

func faultyServices(t *testing.T) service.Snapshot {
	return parse(t, `
node node
  address 192.168.0.2
  host-address 192.168.0.2
service default/dns created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  port dns udp 53
    endpoint 10.244.0.1:53 - ready serving
`)
}

// places are the messages that a call sends.
func (f *faulty) places(t *testing.T, call func() error) []netlinkfault.Place {
	t.Helper()
	var places []netlinkfault.Place
	f.injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) {
		places = append(places, p)
		return netlinkfault.Fault{}, false
	})
	defer f.injector.Decide(netlinkfault.None)
	if err := call(); err != nil {
		t.Fatal(err)
	}
	return netlinkfault.Choose(places)
}

// with makes a call during which one fault comes.
func (f *faulty) with(fault netlinkfault.Fault, at netlinkfault.Place, call func() error) error {
	f.injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) { return fault, p.Number == at.Number })
	defer f.injector.Decide(netlinkfault.None)
	return call()
}

// TestFaultsOfTable: one answer of the kernel goes wrong while a Table reads. Either the method
// returns an error, or its answer is right. The next answer is right. No method waits for an
// answer that does not come.
func TestFaultsOfTable(t *testing.T) {
	f := openFaulty(t)
	f.fill(t)
	answer := ""
	cases := 0
	for name, call := range map[string]func() error{
		"Flows": func() error {
			seen := map[entry]int{}
			err := f.table.Flows(t.Context(), Filter{}, func(f Flow) error { seen[entry{f.Protocol, f.Original}]++; return nil })
			answer = fmt.Sprint(len(seen))
			return err
		},
		"Flows of an endpoint": func() error {
			n := 0
			filter := Filter{Protocol: service.UDP, Endpoint: netip.MustParseAddrPort("10.244.0.9:53")}
			err := f.table.Flows(t.Context(), filter, func(Flow) error { n++; return nil })
			answer = fmt.Sprint(n)
			return err
		},
		"Count": func() error {
			n, _, err := f.table.Count(t.Context())
			answer = fmt.Sprint(n)
			return err
		},
		"Find": func() error {
			_, found, err := f.table.Find(t.Context(), service.UDP, faultyFlow(7).Original)
			answer = fmt.Sprint(found)
			return err
		},
	} {
		places := f.places(t, call)
		want := answer
		for _, at := range places {
			for _, fault := range netlinkfault.Faults(at) {
				if fault.Errno == unix.ENOENT {
					continue // That answer says that there is nothing.
				}
				what := fmt.Sprintf("%s, %s at message %d, %s", name, fault, at.Number, at)
				err := f.with(fault, at, call)
				if cases++; err == nil && answer != want {
					t.Errorf("%s: no error, and the answer is %s, want %s", what, answer, want)
				}
				if err := call(); err != nil || answer != want {
					t.Fatalf("after %s: %v, the answer is %s, want %s", what, err, answer, want)
				}
			}
		}
	}
	t.Logf("%d cases", cases)
}

// TestFaultsOfDelete: one answer goes wrong while a Table deletes flows. Without an error they are
// gone. The next call removes the rest.
func TestFaultsOfDelete(t *testing.T) {
	f := openFaulty(t)
	f.fill(t)
	var all []Flow
	deleted := 0
	call := func() (err error) {
		deleted, err = f.table.Delete(t.Context(), all)
		return err
	}
	all = flows(t, f.other, Filter{})
	places := f.places(t, call)
	cases := 0
	for i, at := range places {
		for j, fault := range netlinkfault.Faults(at) {
			if testing.Short() && (i+j)%7 > 0 {
				continue
			}
			f.fill(t)
			all = flows(t, f.other, Filter{})
			err := f.with(fault, at, call)
			left := len(flows(t, f.other, Filter{}))
			cases++
			what := fmt.Sprintf("%s at message %d, %s", fault, at.Number, at)
			if err == nil && left > 0 && fault.Errno != unix.ENOENT {
				t.Errorf("%s: no error, and %d flows are left", what, left)
			}
			if gone := len(all) - left; deleted > gone {
				t.Errorf("%s: %d flows are said to be deleted, and %d are gone", what, deleted, gone)
			}
			if err := call(); err != nil {
				t.Errorf("after %s: %v", what, err)
			}
			if left := len(flows(t, f.other, Filter{})); left > 0 {
				t.Errorf("after %s and another call: %d flows are left", what, left)
			}
		}
	}
	t.Logf("%d cases", cases)
}

// TestFaultsOfCleaner: one answer goes wrong while the Cleaner removes stale flows. Soon afterwards
// they are gone, and the others are there. The Cleaner has a clock of its own, so its waits take no time.
func TestFaultsOfCleaner(t *testing.T) {
	f := openFaulty(t)
	snapshot := faultyServices(t)
	failed, passes := 0, 0
	clean := func() error {
		failed, passes = 0, 0
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			c := NewCleaner(f.table, NewIndex(Options{}), CleanerConfig{Observe: func(r Run) {
				if passes++; r.Err != nil {
					failed++
				}
			}, Alone: func() bool { return true }})
			stopped := make(chan error)
			go func() { stopped <- c.Run(ctx) }()
			c.SyncDone(snapshot, true)
			time.Sleep(time.Minute)
			synctest.Wait()
			cancel()
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
		return nil
	}
	stale, others := 0, 0
	const wantOthers = faultyFlows - staleFlows
	count := func() {
		stale, others = 0, 0
		for _, f := range flows(t, f.other, Filter{}) {
			if f.Reply.Src.Addr() == netip.MustParseAddr("10.244.0.9") {
				stale++
			} else {
				others++
			}
		}
	}
	f.fill(t)
	count()
	if stale != staleFlows || others != wantOthers {
		t.Fatalf("%d stale flows, %d others", stale, others)
	}
	places := f.places(t, clean)
	if count(); stale > 0 || others != wantOthers || failed > 0 {
		t.Fatalf("without a fault %d stale flows are left, and %d others of %d; %d passes failed", stale, others, wantOthers,
			failed)
	}
	cases, most := 0, 0
	for i, at := range places {
		for j, fault := range netlinkfault.Faults(at) {
			if testing.Short() && (i+j)%7 > 0 {
				continue
			}
			f.fill(t)
			if err := f.with(fault, at, clean); err != nil {
				t.Error(err)
			}
			cases++
			count()
			if stale > 0 || others != wantOthers || failed > 1 {
				t.Errorf("%s at message %d, %s: %d stale flows are left, and %d others of %d; %d of %d passes failed", fault,
					at.Number, at, stale, others, wantOthers, failed, passes)
			}
			most = max(most, failed)
		}
	}
	t.Logf("%d cases; at most %d pass failed", cases, most)
}

// The end of a context ends a call although answers are missing.
func TestTableWithoutAnswers(t *testing.T) {
	f := openFaulty(t)
	f.injector.Decide(func(netlinkfault.Place) (netlinkfault.Fault, bool) {
		return netlinkfault.Fault{Kind: netlinkfault.Lost}, true
	})
	for what, call := range map[string]func() error{
		"Flows":  func() error { return f.table.Flows(t.Context(), Filter{}, func(Flow) error { return nil }) },
		"Count":  func() error { _, _, err := f.table.Count(t.Context()); return err },
		"Delete": func() error { _, err := f.table.Delete(t.Context(), []Flow{faultyFlow(0)}); return err },
	} {
		if err := call(); !errors.Is(err, nfnetlink.ErrUnanswered) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
