package proxy_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// TestHotService: one Service changes every 25 ms in a way that costs 15 ms each time. Syncs
// take a tenth of a core in the long run, and a change of any Service waits for nine times
// the cost of the sync before it at most. After a pause changes go in at once again.
func TestHotService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cost, every, minutes = 15 * time.Millisecond, 25 * time.Millisecond, 10
		compile := ruleset.NewCompiler(rulesetConfig()).Compile
		r := startCompiling(t, config(), newKernel(), services(3), func(s service.Snapshot) *nft.Program {
			time.Sleep(cost)
			return compile(s)
		})
		r.loop.SetMinSyncPeriod(10 * time.Millisecond)
		r.publishAndWait()
		for n := range int(minutes * time.Minute / every) {
			r.services.Set(both("hot", fmt.Sprintf("10.0.0.1:%d", 1000+n%2)))
			r.publish()
			r.sleep(every)
		}
		r.sleep(time.Second)
		spent, longest, rested := time.Duration(0), time.Duration(0), 0
		for _, s := range r.syncs {
			spent += s.End().Sub(s.Start)
			longest = max(longest, s.Latency())
			if s.Rest > 0 {
				rested++
			}
		}
		t.Logf("%d syncs, %d of them with a rest, took %v of %d minutes; longest latency %v", len(r.syncs), rested, spent,
			minutes, longest)
		if most := minutes*time.Minute/10 + 10*time.Second + 2*cost; spent > most || spent < most/2 || rested == 0 {
			t.Errorf("syncs took %v, want %v at most", spent, most)
		}
		if most := 11 * cost; longest > most {
			t.Errorf("a change waited for %v, want %v at most", longest, most)
		}
		r.sleep(time.Minute)
		r.services.Set(both("other", "10.0.0.2:80"))
		r.publish()
		r.sleep(2 * cost)
		r.inForce()
	})
}

// TestDebtorsDelayNobody: the changes of one namespace take a fifth of the time. With accounts the changes of others
// wait for one of these syncs at most; without them all wait for nine times its cost. It does not matter whether these
// changes write anything.
func TestDebtorsDelayNobody(t *testing.T) {
	for _, writes := range []bool{true, false} {
		debtorDelays(t, nil, writes)
		debtorDelays(t, proxy.NewAccounts(), writes)
	}
}

func debtorDelays(t *testing.T, accounts *pace.Accounts, writes bool) {
	synctest.Test(t, func(t *testing.T) {
		const cost, every = 600 * time.Millisecond, 3 * time.Second
		compile := ruleset.NewCompiler(rulesetConfig()).Compile
		hot, c := func(n int) *service.Service {
			if writes {
				return both("hot", fmt.Sprintf("10.0.0.1:%d", 1000+n%2))
			}
			s := both("hot")
			s.Ports[0].Endpoints = service.MergeEndpoints([]service.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:1000"),
				Node: fmt.Sprint("elsewhere-", n%2), Ready: true, Serving: true}})
			return s
		}, config()
		c.Accounts = accounts
		var last *service.Service
		r := startCompiling(t, c, newKernel(), services(3), func(s service.Snapshot) *nft.Program {
			if now := s.Services.At(hot(0).Name); now != last {
				last = now
				time.Sleep(cost)
			}
			return compile(s)
		})
		r.publishAndWait()
		longest := time.Duration(0)
		for n := range 200 {
			r.services.Set(hot(n))
			r.publish()
			r.sleep(cost / 2)
			before := len(r.syncs)
			other := both("other", fmt.Sprintf("10.0.0.2:%d", 1000+n%2))
			other.Name, other.ClusterIPs = service.NewName("elsewhere", "other"),
				[]netip.Addr{netip.MustParseAddr("10.96.9.10")}
			r.services.Set(other)
			r.publish()
			r.sleep(every - cost/2)
			for _, s := range r.syncs[before:] {
				longest = max(longest, s.Latency())
			}
		}
		t.Logf("with accounts: %t, writes: %t: a change waited for %v at most", accounts != nil, writes, longest)
		if slow := longest > 2*cost; slow == (accounts != nil) {
			t.Errorf("with accounts: %t, writes: %t: a change waited for %v", accounts != nil, writes, longest)
		}
	})
}
