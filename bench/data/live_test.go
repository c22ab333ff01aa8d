package data

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/bench/result"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// bareSite is a site without a proxy, for a test.
func bareSite(t *testing.T, backend string) *site {
	t.Helper()
	testnet.SkipUnwanted(t)
	if os.Geteuid() != 0 {
		testnet.Require(t, fs.ErrPermission)
	}
	s, err := newBareSite(backend)
	testnet.Require(t, err)
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// sink collects cells.
type sink struct{ cells []result.Cell }

func (s *sink) Put(c result.Cell)      { s.cells = append(s.cells, c) }
func (s *sink) Doing(string)           {}
func (s *sink) Version(string, string) {}

// TestMeasure asks all questions of nodes without a proxy, and of one that
// cannot be measured.
func TestMeasure(t *testing.T) {
	netfilter.NFTForTest(t)
	e := Effort{
		Rounds: 2, LeastRounds: 2, Burst: 20, LeastBurst: 20, First: true, Again: true,
	}
	got := &sink{}
	r := &run{Config: Config{Sizes: []int{1, 5}, Effort: e}, Sink: got}
	for _, backend := range []string{result.OneStaticRule, again, result.NoProxy} {
		r.sites = append(r.sites, bareSite(t, backend))
	}
	missing := bareSite(t, result.NFTProxy)
	missing.services, missing.failed = 5, errors.New("there is no binary")
	r.sites = append(r.sites, missing)
	if err := r.measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	questions := e.questions()
	if want := len(questions) * (2 + 3); len(got.cells) != want {
		t.Errorf("%d cells, want %d", len(got.cells), want)
	}
	for _, c := range got.cells {
		if !slices.Contains(questions, c.Question) {
			t.Errorf("nobody asked for %+v", c)
		}
		if c.Backend == result.NFTProxy {
			if c.Failed != "there is no binary" || c.Size != "5" {
				t.Errorf("without a binary: %+v", c)
			}
			continue
		}
		v, found := c.Main()
		if c.Failed != "" || !found || v <= 0 || c.Unit == "" {
			t.Errorf("%+v", c)
		}
		_, paired := c.Values[result.PairKey(result.P50, again)]
		if want := c.Backend == result.OneStaticRule && strings.HasPrefix(c.Question,
			result.ConnectionSetup); paired != want {
			t.Errorf("%s of %s: a ratio %v, want %v", c.Question, c.Backend, paired, want)
		}
	}
}

// TestCheck: connections that end elsewhere than they should are noticed, before
// anything is measured.
func TestCheck(t *testing.T) {
	nft := netfilter.NFTForTest(t)
	s := bareSite(t, result.OneStaticRule)
	plain := target{way: plainWay()}
	sticky := target{way: way{affinity: true}}
	load := func(script string) {
		t.Helper()
		if err := nft.Load(s.topology.Node, "flush ruleset\n"+script); err != nil {
			t.Fatal(err)
		}
	}
	load(plain.staticRule(s.to(plain)))
	if err := s.check(plain); err != nil {
		t.Errorf("one rule: %v", err)
	}
	// A proxy has to spread them.
	s.services = 1
	if err := s.check(plain); err == nil {
		t.Error("one endpoint only is not noticed")
	}
	spread := strings.ReplaceAll(plain.staticRule(s.to(plain)), "dnat to "+plain.direct().String(),
		"dnat to numgen random mod 2 map { 0 : 10.244.0.100, 1 : 10.244.0.101 } : 8080")
	load(spread)
	if err := s.check(plain); err != nil {
		t.Errorf("spread: %v", err)
	}
	// It must not where clients are kept.
	load(strings.ReplaceAll(spread, "10.100.0.1", s.to(sticky).Addr().String()))
	if err := s.check(sticky); err == nil {
		t.Error("a client that is not kept is not noticed")
	}
}

// TestUndisturbed: the thread is as it was before, whatever the function says.
func TestUndisturbed(t *testing.T) {
	policy := func() (p uint32) {
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return attr.Policy
	}
	failure := errors.New("a failure")
	before := policy()
	ns := bareSite(t, result.NoProxy).pod.NS
	err := ns.Do(func() error {
		if err := undisturbed(func() error { return failure }); !errors.Is(err, failure) {
			t.Errorf("error %v", err)
		}
		if after := policy(); after != before {
			t.Errorf("policy %d, was %d", after, before)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestCancelled: nothing is put of what was not measured to its end.
func TestCancelled(t *testing.T) {
	netfilter.NFTForTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := &sink{}
	r := &run{Config: Config{Sizes: []int{1}, Effort: Quick()}, Sink: got, sites: []*site{bareSite(t, result.NoProxy)}}
	if err := r.measure(ctx); !errors.Is(err, context.Canceled) || len(got.cells) > 0 {
		t.Errorf("error %v, %d cells", err, len(got.cells))
	}
}
