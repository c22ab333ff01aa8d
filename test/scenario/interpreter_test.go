package scenario_test

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/daemon/listen"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/scenario"
)

func init() { flag.Bool("update", false, "write the compiled programs into the scenario files") }

func updating() bool { return flag.Lookup("update").Value.String() == "true" }

// TestInterpreter compiles the objects of each scenario, compares the program's text, and
// sends the flows through the interpreter. With -update it writes the program into the
// file. It never writes flows: people state them.
func TestInterpreter(t *testing.T) {
	eachScenario(t, func(t *testing.T, s *scenario.Scenario) {
		cfg := config(t, s)
		follower := follow(t, s)
		compiler := ruleset.NewCompiler(cfg)
		i := interpreter{scenario: s, model: nft.NewModel(), before: map[string]netip.AddrPort{}}
		var state nft.State
		for n := range s.Steps {
			snapshot := follower.step(&s.Steps[n])
			program := compiler.Compile(snapshot)
			if n == 0 {
				checkProgram(t, s, s.Beyond(program))
			}
			// As in the daemon, the remembered clients stay from step to step until a
			// sweep removes them.
			batch, next := state.Plan(program, follower.now(n))
			if err := strict.Apply(i.model, batch); err != nil {
				t.Fatal(err)
			}
			if len(ruleset.AffinityShrunk(state.Applied(), program)) > 0 {
				i.sweep(ruleset.AffinityMaps(program))
			}
			state = next
			i.health = listen.HealthHandlers(cfg.NodePortAddresses, snapshot, func() bool { return true })
			for _, f := range s.Steps[n].Flows {
				if err := i.check(f, &s.Steps[n]); err != nil {
					t.Errorf("step %d: %s: %v", n+1, f.Path(), err)
				}
			}
		}
	})
}

func checkProgram(t *testing.T, s *scenario.Scenario, program string) {
	t.Helper()
	if updating() {
		path, contents := s.Update(program)
		if err := os.WriteFile(path, contents, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(s.Program, program); diff != "" {
		t.Errorf("program (-want +got):\n%s", diff)
	}
}

// interpreter sends flows through a model.
type interpreter struct {
	scenario *scenario.Scenario
	model    *nft.Model
	// health has the handlers of health check node ports by their listeners.
	health map[netip.AddrPort]http.Handler
	// before has the endpoint that each sticky client got last.
	before map[string]netip.AddrPort
}

func (i *interpreter) check(f scenario.Flow, step *scenario.Step) error {
	p, err := f.Packet(i.scenario.PodInterface())
	if err != nil {
		return err
	}
	local := localTo(step)
	got, err := outcome(strict.Outcomes(i.model, p, local), p, step.Addresses)
	if err != nil {
		return err
	}
	if f.Protocol == scenario.HTTP && got.Fate == scenario.Untouched {
		if got, err = i.askHealth(f.Destination); err != nil {
			return err
		}
	}
	if f.Want.Sticky {
		return i.checkSticky(f, p, local, got)
	}
	if diff := cmp.Diff(f.Want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		return fmt.Errorf("want %s, got %s", f.Want, got)
	}
	return nil
}

// askHealth asks a health check node port.
func (i *interpreter) askHealth(at netip.AddrPort) (scenario.Outcome, error) {
	all := netip.IPv4Unspecified()
	if at.Addr().Is6() {
		all = netip.IPv6Unspecified()
	}
	for _, listener := range []netip.AddrPort{at, netip.AddrPortFrom(all, at.Port())} {
		if handler, found := i.health[listener]; found {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			answer, err := scenario.ReadAnswer(w.Result())
			return scenario.Outcome{Fate: scenario.Answered, Answer: answer}, err
		}
	}
	return scenario.Outcome{Fate: scenario.Refused}, nil
}

// sweep removes the remembered clients of endpoints that they may no longer reach.
func (i *interpreter) sweep(stale []ruleset.AffinityMap) {
	for _, m := range stale {
		maps.DeleteFunc(i.model.Table(m.Table).Sets[m.Set.Name].Elements, func(_ nft.Value, e nft.Element) bool {
			return !m.Keep(e.Key, e.Data)
		})
	}
}

// checkSticky lets the client connect again and again, with every number that
// numgen can give.
func (i *interpreter) checkSticky(f scenario.Flow, p nft.Packet, local func(netip.Addr) bool,
	first scenario.Outcome) error {
	client := f.Client()
	last, known := i.before[client]
	for n := range uint32(3 * len(f.Want.Targets)) {
		r := i.model.Trace(p, nft.Host{Local: local, Random: func(m uint32) uint32 { return n % m }})
		target := scenario.Target{Endpoint: r.To, Masqueraded: r.Masqueraded, As: r.Source}
		switch {
		case r.Fate != nft.DNATed || !slices.Contains(f.Want.Targets, target):
			return fmt.Errorf("want %s, got %s", f.Want, r)
		case known && slices.ContainsFunc(f.Want.Targets, func(t scenario.Target) bool { return t.Endpoint == last }) &&
			r.To != last:
			return fmt.Errorf("the client moved from %s to %s", last, r.To)
		case !known && !slices.Equal(first.Targets, f.Want.Targets):
			return fmt.Errorf("want %s, a new client may get %s", f.Want, first)
		}
		strict.Learn(i.model, r)
		last, known = r.To, true
	}
	i.before[client] = last
	return nil
}

// outcome returns the outcome that the interpreter's results stand for.
func outcome(results []nft.Result, p nft.Packet, node []netip.Addr) (scenario.Outcome, error) {
	var o scenario.Outcome
	for _, r := range results {
		fate := map[nft.Fate]scenario.Fate{
			nft.DNATed: scenario.Translated, nft.Dropped: scenario.Dropped, nft.Untouched: scenario.Untouched,
			nft.Reset: scenario.Refused, nft.Unreachable: scenario.Refused,
		}[r.Fate]
		switch {
		case o.Fate != "" && o.Fate != fate:
			return o, fmt.Errorf("both %s and %s", o.Fate, fate)
		case r.Mark != 0:
			return o, fmt.Errorf("mark %#x stays on the packet", r.Mark)
		case fate == scenario.Refused && (r.Fate == nft.Reset) != (p.Protocol == uint8(service.TCP)):
			return o, fmt.Errorf("refused by %s", r.Fate)
		case fate != scenario.Translated && r.Masqueraded:
			return o, fmt.Errorf("%s and masqueraded", fate)
		}
		echo := p.Protocol == nft.ICMP || p.Protocol == nft.ICMPv6
		if o.Fate = fate; fate == scenario.Translated && echo && slices.Contains(node, r.To.Addr()) {
			o.Fate = scenario.Echoed
		} else if fate == scenario.Translated {
			o.Targets = append(o.Targets, scenario.Target{Endpoint: r.To, Masqueraded: r.Masqueraded, As: r.Source})
		}
	}
	return o, nil
}

func localTo(step *scenario.Step) func(netip.Addr) bool {
	return func(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(step.Addresses, a) }
}

func config(t *testing.T, s *scenario.Scenario) ruleset.Config {
	t.Helper()
	cfg, err := s.Config()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
