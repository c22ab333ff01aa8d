package share_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// TestSlowStarts: endpoints that come beside others grow in two steps; the first snapshot, endpoints that are equally
// new and a Service that asks for nothing do not wait.
func TestSlowStarts(t *testing.T) {
	t0 := time.Unix(1_800_000_000, 0)
	cluster := func(web string, plain string) service.Snapshot {
		text := "node n1\n"
		for name, endpoints := range map[string]string{"web": web, "plain": plain} {
			text += "service default/" + name + " created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0." +
				map[string]string{"web": "1", "plain": "2"}[name] + "\n  port http tcp 80\n"
			for _, e := range strings.Fields(endpoints) {
				conditions := " ready serving"
				if strings.HasPrefix(e, "t") {
					conditions = " serving terminating"
				}
				at := "10.0.0." + strings.TrimPrefix(e, "t")
				if strings.Contains(e, ":") {
					at = "[" + e + "]"
				}
				text += "    endpoint " + at + ":80 n1" + conditions + "\n"
			}
		}
		s, err := gen.ReadSnapshot(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	builder := snapshots.NewBuilder(service.Node{Name: "n1"})
	var starts share.SlowStarts
	for i, step := range []struct {
		at         int // seconds
		web, plain string
		want       string
		next       int // seconds; 0 for never
	}{
		{0, "1", "1", "1=100", 0}, // nothing is new at the start
		{1, "1 2", "1 2", "1=100 2=25", 16},
		{4, "1 2", "1 2", "1=100 2=25", 16},
		{16, "1 2", "1 2", "1=100 2=50", 31},
		{18, "1 2 3", "1 2", "1=100 2=50 3=25", 31},
		{31, "1 2 3", "1 2", "1=100 2=100 3=25", 33},
		{34, "1 2 3", "1 2", "1=100 2=100 3=50", 48},
		{35, "3", "1 2", "3=100", 48},       // nobody is left that could take its share
		{36, "3 4", "1", "3=100 4=50", 48},  // a half and a quarter
		{48, "3 4", "1", "3=100 4=25", 51},  // the whole and a quarter
		{51, "3 4", "1", "3=100 4=50", 66},  //
		{66, "3 4", "1", "3=100 4=100", 0},  //
		{70, "5 6", "1", "5=100 6=100", 85}, // all are equally new, and so is the next one
		{71, "5 6 7", "1", "5=100 6=100 7=100", 85},
		{85, "5 6 7", "1", "5=100 6=100 7=50", 86},
		{86, "5 6 7", "1", "5=100 6=100 7=100", 100},
		{102, "5 6 7", "1", "5=100 6=100 7=100", 0},
		{110, "", "1", "", 0},
		{111, "1", "1", "1=100", 126},
		{112, "1 2", "1", "1=100 2=100", 126}, // a Service that starts
		{200, "1 2", "1", "1=100 2=100", 0},
		{201, "1 2 fd00::1", "1", "1=100 2=100 fd00::1=100", 216}, // the first one of its family
		{201, "1 2 t3 fd00::1", "1", "1=100 2=100 3=25 fd00::1=100", 216},
		{202, "t2 4", "1", "2=100 4=100", 216}, // 2 gets nothing while 4 is ready
	} {
		now := t0.Add(time.Duration(step.at) * time.Second)
		for _, s := range cluster(step.web, step.plain).Services.All() {
			if s.Name == "default/web" {
				s = s.Clone()
				s.Options.SlowStart = 30 * time.Second
			}
			builder.Set(s)
		}
		growth, next, refused := starts.Follow(builder.Snapshot(), now)
		if len(refused) > 0 {
			t.Errorf("step %d: refused %v", i, refused)
		}
		builder.SetGrowing(growth)
		var got []string
		for e := range builder.Snapshot().Services.At("default/web").Ports[0].Endpoints.All() {
			got = append(got, strings.TrimPrefix(fmt.Sprintf("%v=%d", e.Addr.Addr(), e.Quarters()/4), "10.0.0."))
		}
		if text := strings.Join(got, " "); text != step.want {
			t.Errorf("step %d: %s, want %s", i, text, step.want)
		}
		due := 0
		if !next.IsZero() {
			due = int(next.Sub(t0).Seconds())
		}
		if due != step.next {
			t.Errorf("step %d: next after %d s, want %d", i, due, step.next)
		}
		for e := range builder.Snapshot().Services.At("default/plain").Ports[0].Endpoints.All() {
			if e.Share != service.WholeShare {
				t.Errorf("step %d: %v of the Service that asks for nothing has a part of its weight", i, e.Addr)
			}
		}
	}
}

// TestSlowStartsRandom: whatever comes and goes, and however late Follow is called. A port never has growing
// endpoints only; only Services that ask for it have any, for no longer than they ask for and the next tick, and within
// the bounds; of two endpoints the older never has the smaller part; the next call is asked for at a whole second that
// the step needs; and in the end nothing grows.
func TestSlowStartsRandom(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		builder, now := snapshots.NewBuilder(service.Node{Name: "n1"}), time.Unix(1_800_000_000, 0)
		var starts share.SlowStarts
		var next time.Time
		check := func() {
			t.Helper()
			growth, due, refused := starts.Follow(builder.Snapshot(), now)
			builder.SetGrowing(growth)
			next = due
			seen["refused"] += len(refused)
			snapshot, total := builder.Snapshot(), 0
			if followed := starts.Growing(); (followed > 0) != !due.IsZero() || growth.Len() > followed {
				t.Fatalf("seed %d: %d Services have growing endpoints, %d are followed, and the next step is due at %v", seed,
					growth.Len(), followed, due)
			}
			if !due.IsZero() && (!due.After(now) || due.Nanosecond() != 0 || due.Sub(now) > time.Minute) {
				t.Fatalf("seed %d: at %v the next step is due at %v", seed, now, due)
			}
			for name, growers := range growth.All() {
				s := snapshot.Services.At(name)
				if s == nil || s.Options.SlowStart == 0 {
					t.Fatalf("seed %d: %s does not ask for it", seed, name)
				}
				younger := slices.SortedFunc(slices.Values(*growers), func(a, b service.Adjustment) int {
					return b.Since.Compare(a.Since)
				})
				for i, g := range younger {
					seen[fmt.Sprint("part ", g.Share)]++
					if g.Share > younger[max(0, i-1)].Share || g.Share == service.NoShare || g.Share == service.WholeShare ||
						now.Sub(g.Since) >= s.Options.SlowStart+share.Tick {
						t.Fatalf("seed %d: at %v %s has %+v", seed, now, name, younger)
					}
				}
				total += s.Ports[0].Endpoints.Len()
				whole := 0
				for e := range s.Ports[0].Endpoints.All() {
					if e.TakesNew() && !e.Drained() && growers.Find(&s.Ports[0], e.Addr) == nil {
						whole++
					}
				}
				if whole == 0 {
					t.Fatalf("seed %d: all endpoints of %s are growing", seed, name)
				}
			}
			if total > share.MaxGrowingOfNamespace {
				t.Fatalf("seed %d: growing Services have %d endpoints", seed, total)
			}
		}
		for range 150 {
			name := service.Name(fmt.Sprint("ns/", rng.IntN(4)))
			if rng.IntN(8) == 0 {
				builder.Delete(name)
			} else {
				s := &service.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.96.0.", 1+name[3]))}}
				s.Options.SlowStart = []time.Duration{0, time.Second, 10 * time.Second, time.Minute}[min(3, rng.IntN(6))]
				many := 1
				if rng.IntN(6) == 0 {
					many = 200
				}
				var list []service.Endpoint
				for i := range 6 * many {
					if rng.IntN(2) == 0 {
						weight := service.NewWeight([]uint16{100, 100, 1, 0}[rng.IntN(4)])
						list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8),
							byte(i)}), 80), Ready: rng.IntN(4) > 0, Weight: weight})
					}
				}
				s.Ports = []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}}
				builder.Set(s)
			}
			check()
			if now = now.Add(time.Duration(rng.IntN(8000)) * time.Millisecond); rng.IntN(2) == 0 && !next.IsZero() {
				now = next
			}
			check()
		}
		for steps := 0; !next.IsZero(); steps++ {
			if now = next; steps > 100 {
				t.Fatalf("seed %d: it never ends", seed)
			}
			check()
		}
		for name, s := range builder.Snapshot().Services.All() {
			if s != builder.Service(name) {
				t.Fatalf("seed %d: nothing grows any more, and %s differs from what it asks for", seed, name)
			}
		}
		if starts.Growing() != 0 {
			t.Fatalf("seed %d: %d Services are followed in the end", seed, starts.Growing())
		}
	}
	for _, what := range []string{"part 1/4", "part 2/4", "refused"} {
		if seen[what] == 0 {
			t.Errorf("there was no %s: %v", what, seen)
		}
	}
}
