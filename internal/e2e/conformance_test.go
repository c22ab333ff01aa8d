package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nftproxy/internal/cluster"
	"nftproxy/internal/nftcmd"
	"nftproxy/internal/scenario"
	"nftproxy/internal/scenario/stage"
)

// TestConformance runs every scenario file with nftproxy and with kube-proxy,
// each on a node of its own with the same API server. kube-proxy's outcome has
// to be that of the file, or the one that the file says it has instead.
func TestConformance(t *testing.T) {
	if os.Getenv("NFTPROXY_CONFORMANCE") == "" {
		t.Skip("make conformance runs this")
	}
	requireRoot(t)
	nftcmd.ForTest(t) // kube-proxy needs it
	theirs, err := cluster.Tool(testContext(t), "kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	plane := shared.scenarioPlane(t)
	var table []deviation
	eachScenario(t, func(t *testing.T, s *scenario.Scenario) {
		p := newPlay(t, plane, s)
		ours, kubeProxy := p.addSide(ourCommand(t, plane, s)), p.addSide(kubeProxyCommand(theirs, plane, s))
		for n := range s.Steps {
			p.enter(n)
			if !ours.awaitMarker(patience) {
				t.Fatalf("step %d: not in the kernel within %v", n+1, patience)
			}
			if !kubeProxy.awaitMarker(lag) {
				t.Logf("step %d: kube-proxy had not done it within %v", n+1, lag)
			}
			var both sync.WaitGroup
			both.Go(func() {
				for _, err := range ours.check(n) {
					t.Errorf("step %d: nftproxy: %v", n+1, err)
				}
			})
			both.Go(func() { table = append(table, kubeProxy.compare(n)...) })
			both.Wait()
		}
	})
	t.Logf("what differs from kube-proxy:\n%s", report(table))
}

// kubeProxyCommand runs kube-proxy for a scenario. Its mark bit can be set in a
// configuration file only, and no flow depends on it.
func kubeProxyCommand(binary string, plane *controlPlane, s *scenario.Scenario) *exec.Cmd {
	flags := slices.DeleteFunc(s.CommandLine(), func(f string) bool { return strings.HasPrefix(f, "--masquerade-bit") })
	return exec.Command(binary, append([]string{
		"--proxy-mode=nftables", "--hostname-override=" + scenario.NodeName, "--kubeconfig=" + plane.cluster.AdminKubeconfig(),
		"--iptables-min-sync-period=0s", "--conntrack-max-per-core=0", "-v=2",
	}, flags...)...)
}

// deviation is a flow that ends otherwise with kube-proxy.
type deviation struct {
	scenario     string
	step         int
	path         string
	ours, theirs string
	// heading is that in docs/differences.md.
	heading string
}

// compare sends the flows of a step by kube-proxy and returns those that end
// otherwise, as the file says. Others are errors, and so is what does not
// differ although the file says so.
func (s *side) compare(n int) []deviation {
	s.t.Helper()
	flows := s.flows(n)
	listed := map[string]scenario.Flow{}
	for _, f := range s.scenario.Steps[n].KubeProxy {
		listed[f.Path()] = f
	}
	expected := slices.Clone(flows)
	for i, f := range expected {
		if l, found := listed[f.Path()]; found {
			expected[i] = l
		}
	}
	var seen []outcome
	s.settle(n, func() bool {
		seen = s.observe(expected)
		return !slices.ContainsFunc(seen, func(o outcome) bool { return !o.asWanted })
	})
	var found []deviation
	for i, f := range flows {
		l, isListed := listed[f.Path()]
		d := deviation{s.scenario.Name, n + 1, f.Path(), f.Want.String(), seen[i].text, l.Why}
		switch {
		case !seen[i].asWanted && isListed:
			s.t.Errorf("step %d: %s: with kube-proxy %s, but the file says %s", n+1, f.Path(), seen[i].text, l.Want)
		case !seen[i].asWanted:
			d.heading = "NOT LISTED"
			s.t.Errorf("step %d: %s = %s, with kube-proxy %s", n+1, f.Path(), f.Want, seen[i].text)
		case seen[i].byICMP && f.Want.Fate == scenario.Refused:
			d.heading = refusalHeading
		case !isListed:
			continue
		}
		found = append(found, d)
	}
	return found
}

// refusalHeading is for refusals of TCP, which no file lists.
const refusalHeading = "TCP is refused by a reset"

// outcome is what became of a flow with kube-proxy.
type outcome struct {
	text     string
	asWanted bool
	byICMP   bool // refused TCP
}

// observe sends flows one after the other, for the sake of what clients stick
// to, except those that have to be waited for.
func (s *side) observe(flows []scenario.Flow) []outcome {
	seen := make([]outcome, len(flows))
	var waiting sync.WaitGroup
	for i, f := range flows {
		if f.Want.Fate == scenario.Dropped || f.Want.Fate == scenario.Refused {
			waiting.Go(func() { seen[i] = s.observeOne(f) })
		}
	}
	for i, f := range flows {
		if f.Want.Fate != scenario.Dropped && f.Want.Fate != scenario.Refused {
			seen[i] = s.observeOne(f)
		}
	}
	waiting.Wait()
	return seen
}

// silence is longer than a refusal by ICMP may take: then the client does not
// hear of it before it sends its SYN again, after a second.
const silence = 1500 * time.Millisecond

func (s *side) observeOne(f scenario.Flow) outcome {
	effort := stage.Effort{Tries: 1, Timeout: silence}
	if targets := len(f.Want.Targets); targets > 1 {
		effort.Tries = 25 * targets // the chance to miss one is below 1e-10
	} else if targets == 1 {
		effort.Tries = 5
	}
	if f.Source.Port() != 0 {
		effort.Tries = 1
	}
	got, err := s.stage.Observe(s.world.ctx, f, effort)
	o := outcome{text: got.String(), byICMP: got.Fate == scenario.Refused && f.Protocol == "tcp" && !got.Reset}
	switch {
	case err != nil:
		o.text = err.Error()
	case f.Want.Sticky && got.Fate == scenario.Translated:
		o.asWanted = len(got.Targets) == 1 && slices.Contains(f.Want.Targets, got.Targets[0]) && s.stays(f, got.Targets[0])
	default:
		o.asWanted = got.Fate == f.Want.Fate && slices.Equal(got.Targets, f.Want.Targets)
	}
	return o
}

// stays says whether a client still has the target that it had before, if that
// is among those it may have.
func (s *side) stays(f scenario.Flow, now scenario.Target) bool {
	before, known := s.stuck[f.Path()]
	s.stuck[f.Path()] = now
	return !known || before == now || !slices.ContainsFunc(f.Want.Targets, func(t scenario.Target) bool { return t.Endpoint == before.Endpoint })
}

// report is a table of differences, by heading.
func report(table []deviation) string {
	byHeading := map[string][]deviation{}
	var headings []string
	for _, d := range table {
		if byHeading[d.heading] == nil {
			headings = append(headings, d.heading)
		}
		byHeading[d.heading] = append(byHeading[d.heading], d)
	}
	slices.Sort(headings)
	var b strings.Builder
	for _, h := range headings {
		fmt.Fprintf(&b, "%s (%d flows)\n", h, len(byHeading[h]))
		for i, d := range byHeading[h] {
			if h == refusalHeading && i == 3 {
				fmt.Fprintf(&b, "    ...\n")
				break
			}
			fmt.Fprintf(&b, "    %s/%d  %s\n        nftproxy:   %s\n        kube-proxy: %s\n", d.scenario, d.step, d.path, d.ours, d.theirs)
		}
	}
	return b.String()
}
