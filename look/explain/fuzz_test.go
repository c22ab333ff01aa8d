package explain_test

import (
	"encoding/json"
	"errors"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"nftproxy/look/explain"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/gen"
)

// FuzzExplain: whatever tables others have left, there is an account of each packet, in
// bounded memory. It has a text and a JSON, and the chances add up to 1.
func FuzzExplain(f *testing.F) {
	for _, data := range gen.Seeds(20, 400) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rng := gen.Rand(data)
		cfg, node, services, b := gen.Cluster(rng)
		b.SetServiceCIDRs(gen.ServiceCIDRs(rng))
		snapshot := b.Snapshot()
		empty := ruleset.Compile(ruleset.Config{Table: cfg.Table}, service.Snapshot{Node: &service.Node{}})
		facts := explain.Facts{
			Tables: gen.DamagedTables(rng, ruleset.Compile(cfg, snapshot), empty), Table: cfg.Table,
			Local:   func(a netip.Addr) bool { return slices.Contains(node.HostAddresses, a) },
			Expires: func(string, nft.Value) time.Duration { return time.Minute },
		}
		if rng.IntN(2) == 0 {
			facts.Objects, facts.Source = &snapshot, "the objects"
		}
		for range 4 {
			q := explain.Question{Packet: gen.Packet(rng, node, services), From: "somewhere"}
			check.Bounded(t, 512<<20, func() { checkExplanation(t, q, &facts) })
		}
	})
}

func checkExplanation(t *testing.T, q explain.Question, facts *explain.Facts) {
	e, err := explain.Explain(t.Context(), q, facts)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, r := range e.Results {
		sum += r.Chance
	}
	complete := !slices.ContainsFunc(e.Notes, func(n string) bool { return n != "" }) // a note says what was left out
	if complete && math.Abs(sum-1) > 1e-6 || sum > 1+1e-6 || math.IsNaN(sum) {
		t.Errorf("%s: the chances add up to %v", q.Packet, sum)
	}
	if e.Summary == "" || e.Text(true) == "" {
		t.Errorf("%s: no words", q.Packet)
	}
	if _, err := json.Marshal(e); err != nil {
		t.Error(err)
	}
}

// FuzzQuestion: what the parsers of questions accept, they print in a form that gives the
// same again.
func FuzzQuestion(f *testing.F) {
	f.Add("10.96.0.10:53/udp", "10.0.0.1@eth0")
	f.Add("[fd00:96::a]:53", "node")
	f.Add("[::ffff:10.0.0.1]/icmp", "fe80::1%eth0")
	f.Fuzz(func(t *testing.T, destination, origin string) {
		d, err := explain.ParseDestination(destination)
		switch {
		case err == nil:
			if again, err := explain.ParseDestination(d.String()); err != nil || again != d {
				t.Errorf("%q is %v, and then %v, %v", destination, d, again, err)
			}
		case !errors.Is(err, explain.ErrQuestion):
			t.Errorf("%q: %v", destination, err)
		}
		o, err := explain.ParseOrigin(origin)
		switch {
		case err == nil:
			if again, err := explain.ParseOrigin(o.String()); err != nil || again != o {
				t.Errorf("%q is %v, and then %v, %v", origin, o, again, err)
			}
		case !errors.Is(err, explain.ErrQuestion):
			t.Errorf("%q: %v", origin, err)
		}
	})
}
