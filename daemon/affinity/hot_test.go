package affinity

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// TestHotServices: Services with full maps lose an endpoint three times a second for ten
// minutes. Sweeps take a twentieth of a core in the long run. Beyond the burst no map keeps
// clients of an endpoint that has gone for much longer than the patience, and the sweep of a
// small map waits for a sweep under way at most.
func TestHotServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hot, dump, every = 8, 500 * time.Millisecond, 333 * time.Millisecond
		b := start(t)
		b.kernel.takesOf = map[string]time.Duration{}
		for i := range hot {
			b.kernel.takesOf[fmt.Sprintf("affinity-ns/svc-%d/tcp/80", i)] = dump
		}
		program := func(n, small int) *nft.Program {
			build := snapshots.NewBuilder(service.Node{Name: "node-0"})
			for i := range hot + 1 {
				var list []service.Endpoint
				for e := range 3 {
					a := netip.AddrFrom4([4]byte{10, byte(i), 0, byte(10*(n%2) + e)})
					if i == hot {
						a = netip.AddrFrom4([4]byte{10, byte(i), byte(small), byte(e)})
					}
					list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(a, 80), Ready: true, Serving: true})
				}
				p := service.Port{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}
				build.Set(&service.Service{Name: service.NewName("ns", fmt.Sprint("svc-", i)), AffinityTimeout: time.Hour,
					ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})}, Ports: []service.Port{p}})
			}
			return ruleset.Compile(ruleset.Config{Table: "test"}, build.Snapshot())
		}
		b.Notify(program(0, 0), true)
		asked, worst, worstSmall := map[string]time.Duration{}, time.Duration(0), time.Duration(0)
		const changes = int(10 * time.Minute / every)
		for n := 1; n < changes; n++ {
			time.Sleep(every)
			b.Notify(program(n, n/30), false)
			now := time.Since(b.began)
			for i := range hot + 1 {
				name := fmt.Sprintf("ip affinity-ns/svc-%d/tcp/80", i)
				if _, waits := asked[name]; !waits && (i < hot || n%30 == 0) {
					asked[name] = now
				}
			}
			synctest.Wait()
			b.kernel.mu.Lock()
			for _, s := range slices.Concat(b.kernel.sweeps, b.kernel.forgotten) {
				at, ok := asked[s.Map]
				began := s.at.Sub(b.began)
				if !ok || began < at {
					continue
				}
				if at < 2*burst+10*time.Second {
					// The burst is for waits of this time.
				} else if s.Map == fmt.Sprintf("ip affinity-ns/svc-%d/tcp/80", hot) {
					worstSmall = max(worstSmall, began-at)
				} else {
					worst = max(worst, began-at)
				}
				delete(asked, s.Map)
			}
			b.kernel.sweeps, b.kernel.forgotten = nil, nil
			b.kernel.mu.Unlock()
		}
		busy, emptied, total := time.Duration(0), 0, time.Since(b.began)
		for _, r := range b.runs {
			busy += r.Duration
			if r.Forgotten {
				emptied++
			}
		}
		t.Logf("%v of %v spent, maps emptied %d times; longest wait %v, of the small map %v", busy, total, emptied, worst,
			worstSmall)
		if most := total/longRest + burst + (hot+1)*dump; busy > most || emptied == 0 {
			t.Errorf("%v spent, want %v at most; maps emptied %d times", busy, most, emptied)
		}
		if most := 2*patience + 2*dump; worst > most {
			t.Errorf("a map waited for %v, want %v at most", worst, most)
		}
		if most := dump; worstSmall > most {
			t.Errorf("the small map waited for %v, want %v at most", worstSmall, most)
		}
	})
}
