package ruleset_test

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// Chains that count the packets for which the map endpoints had no element.
const (
	missedFirst = "missed-first" // behind the first rule that translates
	missedBoth  = "missed-both"  // behind the second
)

// churned is the program of a Service with these numbers of endpoints, and with chains that count
// what its rules miss.
func churned(endpoints ...byte) *nft.Program {
	s := &service.Service{Name: "ns/churned", ClusterIPs: []netip.Addr{openAddress}}
	var list []service.Endpoint
	for _, e := range endpoints {
		list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, e}), 8080),
			Ready: true, Serving: true})
	}
	s.Ports = []service.Port{{Protocol: service.UDP, Port: firstPort, Endpoints: service.MergeEndpoints(list)}}
	p := rangesProgram(s)
	table := p.IPv4.Clone()
	for name, c := range table.Chains.All() {
		if strings.HasPrefix(name, "endpoints-") {
			table.Chains = table.Chains.Set(name, countingMisses(c))
		}
	}
	for _, name := range []string{missedFirst, missedBoth} {
		table.Chains = table.Chains.Set(name, &nft.Chain{Name: name, Rules: []nft.Rule{{nft.Counter{}}}})
	}
	return &nft.Program{IPv4: table, IPv6: p.IPv6}
}

// countingMisses is the chain with a jump behind each rule that translates.
func countingMisses(c *nft.Chain) *nft.Chain {
	counting := &nft.Chain{Name: c.Name}
	counters := []string{missedFirst, missedBoth}
	for _, r := range c.Rules {
		counting.Rules = append(counting.Rules, r)
		if slices.ContainsFunc(r, func(s nft.Statement) bool { _, is := s.(nft.DNAT); return is }) {
			counting.Rules = append(counting.Rules, nft.Rule{nft.Verdict{Code: nft.Jump, Chain: counters[0]}})
			counters = counters[1:]
		}
	}
	return counting
}

// fates count how first packets ended.
type fates struct{ translated, kept, untouched atomic.Int64 }

func (f *fates) sent() int64 { return f.translated.Load() + f.kept.Load() + f.untouched.Load() }

// flood sends first packets to the Service until stop, and counts their ends.
func (s *sender) flood(first int, f *fates, stop <-chan struct{}) error {
	return s.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		to, source := netip.AddrPortFrom(openAddress, firstPort), inRanges(1000)
		for i := first; ; i++ {
			select {
			case <-stop:
				return nil
			default:
			}
			switch err := unix.Sendto(fd, datagram(netip.AddrPortFrom(source(i), uint16(1024+i%60_000)), to), 0,
				&unix.SockaddrInet4{Addr: openAddress.As4()}); err {
			case translated:
				f.translated.Add(1)
			case dropped:
				f.kept.Add(1)
			case nil:
				f.untouched.Add(1)
			default:
				return fmt.Errorf("send packet %d: %w", i, err)
			}
		}
	})
}

// TestLookupsUnderChurn: while a Service's endpoints are replaced, come and go, each first packet is
// translated, but for one a processor and batch at most: the one that was between two looks. Such a
// packet is dropped or refused. None leaves the node untranslated.
//
// The log says how many packets found no element for their index, and how many of these the second
// rule saved.
func TestLookupsUnderChurn(t *testing.T) {
	batches := 20_000
	if testing.Short() {
		batches = 1000
	}
	s := newSender(t)
	programs := []*nft.Program{churned(1, 2, 3), churned(1, 2, 4), churned(1, 2), churned(1, 2, 3, 4, 5, 6), churned(5, 6)}
	apply := func(state nft.State, p *nft.Program) nft.State {
		t.Helper()
		batch, next := state.Plan(p, time.Time{})
		must(t, s.c.Apply(batch))
		return next
	}
	state := apply(nft.State{}, programs[0])

	var f fates
	stop := make(chan struct{})
	var flooding sync.WaitGroup
	floods := max(1, runtime.NumCPU()-1)
	for i := range floods {
		flooding.Go(func() {
			if err := s.flood(i*1_000_003, &f, stop); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range batches {
		state = apply(state, programs[(i+1)%len(programs)])
		if i%100 == 0 { // the flood needs the processor
			for goal := f.sent() + 100; f.sent() < goal && !t.Failed(); {
				runtime.Gosched()
			}
		}
	}
	close(stop)
	flooding.Wait()

	count := func(chain string) int64 {
		n, err := s.c.ChainCount(nft.TableID{Family: nft.IPv4, Name: ruleset.DefaultTable}, chain)
		must(t, err)
		return int64(n)
	}
	first, both, refused := count(missedFirst), count(missedBoth), count("unknown-port")
	t.Logf("%d batches, %d packets: for %d the first rule had no element, for %d the second had none either; the map of "+
		"Services had none for %d",
		batches, f.sent(), first, both, refused)
	if f.kept.Load() != both+refused || f.untouched.Load() > 0 {
		t.Errorf("%d packets were dropped or refused, and %d left untranslated; the rules count %d and %d", f.kept.Load(),
			f.untouched.Load(), both, refused)
	}
	if lost := f.kept.Load(); lost > int64(batches*floods) {
		t.Errorf("%d packets were lost in %d batches", lost, batches)
	}
}
