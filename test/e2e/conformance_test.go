package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
	"nftproxy/test/scenario"
)

// TestConformance runs every scenario file with nftproxy and with kube-proxy, each on a
// node of its own with the same API server. kube-proxy's outcome must be that of the
// file, or the different one that the file has for it.
func TestConformance(t *testing.T) {
	if os.Getenv("NFTPROXY_CONFORMANCE") == "" {
		t.Skip("make conformance runs this")
	}
	controlplane.Require(t)
	nft := netfilter.NFTForTest(t) // kube-proxy needs it, too
	release := os.Getenv(controlplane.KubeProxyVariable)
	theirs, err := controlplane.KubeProxy(testContext(t), release)
	if err != nil {
		t.Fatal(err)
	}
	plane := shared.scenarioPlane(t)
	var table []deviation
	eachScenario(t, func(t *testing.T, s *scenario.Scenario) {
		p := newPlay(t, plane, s)
		ours, kubeProxy := p.addSide(ourCommand(t, plane, s)), p.addSide(kubeProxyCommand(t, theirs, plane, s))
		for n := range s.Steps {
			p.enter(n)
			if !ours.awaitMarker(patience) {
				t.Fatalf("step %d: not in the kernel within %v", n+1, patience)
			}
			if kubeProxy.awaitIfItCan(n) && n == 0 {
				kubeProxy.awaitServiceCIDRs(nft)
			}
			var both sync.WaitGroup
			both.Go(func() {
				for _, err := range ours.check(n) {
					t.Errorf("step %d: nftproxy: %v", n+1, err)
				}
			})
			both.Go(func() { table = append(table, kubeProxy.compare(n, release)...) })
			both.Wait()
		}
	})
	t.Logf("what differs from kube-proxy:\n%s", report(table))
}

// TestDifferences compares the scenario files' sections about kube-proxy with their
// flows, and with the headings of the document for operators.
func TestDifferences(t *testing.T) {
	document, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]bool{}
	for line := range strings.Lines(string(document)) {
		if heading, found := strings.CutPrefix(line, "## "); found {
			headings[strings.TrimSpace(heading)] = true
		}
	}
	if !headings[refusalHeading] {
		t.Errorf("docs/differences.md has no heading %q", refusalHeading)
	}
	eachScenario(t, func(t *testing.T, s *scenario.Scenario) {
		for n, step := range s.Steps {
			ours := map[string]scenario.Outcome{}
			for _, f := range slices.Concat(step.Flows, step.Packets) {
				ours[f.Path()] = f.Want
				if f.Want.Chance {
					t.Errorf("step %d: %s: only kube-proxy's outcome may be left to chance", n+1, f)
				}
			}
			for _, f := range slices.Concat(step.KubeProxy, step.WithKubeProxy("1.36"), step.WithKubeProxy("1.38")) {
				switch want, found := ours[f.Path()]; {
				case !found:
					t.Errorf("step %d: kube-proxy: %s is none of the flows", n+1, f.Path())
				case !f.Want.Chance && mayBeEqual(want, f.Want):
					t.Errorf("step %d: kube-proxy: %s is no difference", n+1, f.Path())
				case !headings[f.Why]:
					t.Errorf("step %d: kube-proxy: %s: docs/differences.md has no heading %q", n+1, f.Path(), f.Why)
				}
			}
		}
	})
}

// mayBeEqual says whether an observation of one outcome could be one of the other.
func mayBeEqual(a, b scenario.Outcome) bool {
	if a.Sticky || b.Sticky { // one of the targets is seen
		return slices.ContainsFunc(a.Targets, func(t scenario.Target) bool { return slices.Contains(b.Targets, t) })
	}
	return a.String() == b.String()
}

// awaitIfItCan waits for kube-proxy, which some steps stop, and says whether it
// has done the step. If it ends it is started again, as a kubelet does.
func (s *side) awaitIfItCan(n int) bool {
	s.t.Helper()
	done := s.awaitMarker(lag)
	if !done && s.process.Ended() {
		s.t.Logf("step %d: kube-proxy starts again", n+1)
		s.start()
		done = s.awaitMarker(lag)
	}
	if !done {
		s.t.Logf("step %d: kube-proxy has not done it within %v", n+1, lag)
	}
	return done
}

// awaitServiceCIDRs starts kube-proxy again until its first sync has not missed
// the cluster's own ServiceCIDRs, as it may: the next one that asks for them is
// an hour away.
func (s *side) awaitServiceCIDRs(nft netfilter.NFT) {
	s.t.Helper()
	for !s.hasServiceCIDRs(nft) {
		s.t.Log("kube-proxy has missed the ServiceCIDRs: starts again")
		s.restart()
	}
}

// restart ends kube-proxy and starts it again, up to the end of its first syncs.
func (s *side) restart() {
	s.t.Helper()
	s.process.kill()
	s.start()
	for _, family := range []string{"IPv4", "IPv6"} {
		s.process.await("the first sync", 0, func(l line) bool {
			return l.Has("SyncProxyRules complete", `ipFamily="`+family+`"`)
		})
	}
}

// hasMissedZone says whether kube-proxy knows no zone although the Node has one: it
// registers for the Node's zone when the Node may have been announced already.
func (s *side) hasMissedZone(n int) bool {
	lines, _ := s.process.Logged(0)
	return slices.ContainsFunc(lines, func(l line) bool {
		return l.Has("node is missing label", corev1.LabelTopologyZone)
	}) &&
		slices.ContainsFunc(s.scenario.Steps[n].Objects, func(o scenario.Object) bool {
			return o.Kind == "Node" && strings.Contains(o.YAML, corev1.LabelTopologyZone)
		})
}

func (s *side) hasServiceCIDRs(nft netfilter.NFT) bool {
	s.t.Helper()
	for i, family := range []string{"ip", "ip6"} {
		text, err := nft.Run(s.stage.Node, "", "list", "chain", family, "kube-proxy", "cluster-ips-check")
		s.world.must(err)
		if !strings.Contains(text, s.world.plane.Config.ServiceCIDRs[i].String()) {
			return false
		}
	}
	return true
}

// deviation is a flow with another outcome with kube-proxy.
type deviation struct {
	scenario     string
	step         int
	path         string
	ours, theirs string
	// heading is the heading in docs/differences.md.
	heading string
}

// compare sends the flows of a step through kube-proxy. It returns those that differ as
// the file says. Any other difference is an error. So is a difference that the file lists
// and that does not show, unless chance decides it.
func (s *side) compare(n int, release string) []deviation {
	s.t.Helper()
	flows := s.flows(n)
	listed := map[string]scenario.Flow{}
	for _, f := range s.scenario.Steps[n].WithKubeProxy(release) {
		listed[f.Path()] = f
	}
	expected := slices.Clone(flows)
	for i, f := range expected {
		if l, found := listed[f.Path()]; found {
			expected[i] = l
		}
	}
	var seen []outcome
	for range 4 { // not for ever: without a podCIDR it ends each time
		wanted := false
		s.repeatUntilDone(n, lag, func() bool {
			seen = s.observe(expected)
			wanted = !slices.ContainsFunc(seen, func(o outcome) bool { return !o.asWanted })
			return wanted
		})
		switch {
		case s.process.Ended():
			s.t.Logf("step %d: kube-proxy has ended, and starts again", n+1)
			s.start()
			continue
		case !wanted && s.hasMissedZone(n):
			s.t.Logf("step %d: kube-proxy has missed the Node's zone, and starts again", n+1)
			s.restart()
			continue
		}
		break
	}
	var found []deviation
	for i, f := range flows {
		l, isListed := listed[f.Path()]
		d := deviation{s.scenario.Name, n + 1, f.Path(), f.Want.String(), seen[i].text, l.Why}
		switch {
		case isListed && seen[i].asWanted && l.Want.Chance && d.theirs == d.ours:
			s.t.Logf("step %d: %s: chance has chosen what nftproxy has", n+1, f.Path())
			continue
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

// refusalHeading is the heading for refusals of TCP, which no file lists.
const refusalHeading = "TCP is refused by a reset"

// outcome is the observed outcome of a flow with kube-proxy.
type outcome struct {
	text     string
	asWanted bool
	byICMP   bool // refused TCP
}

// observe sends flows one after the other, since clients may be sticky. Flows that take
// long run beside each other.
func (s *side) observe(flows []scenario.Flow) []outcome {
	seen := make([]outcome, len(flows))
	var waiting sync.WaitGroup
	for i, f := range flows {
		if mayWait(f) {
			waiting.Go(func() { seen[i] = s.observeOne(f) })
		}
	}
	for i, f := range flows {
		if !mayWait(f) {
			seen[i] = s.observeOne(f)
		}
	}
	waiting.Wait()
	return seen
}

// mayWait says whether a flow takes long and disturbs no other. Two flows from one port
// would, and an ICMP error goes to every raw socket that has sent to the address.
func mayWait(f scenario.Flow) bool {
	return (f.Want.Fate == scenario.Dropped || f.Want.Fate == scenario.Refused) && f.Source.Port() == 0 &&
		(f.Protocol == testnet.TCP || f.Protocol == testnet.UDP)
}

// silence is longer than a refusal by ICMP may take. The client may learn of it only
// after its next SYN, a second later.
const silence = 1500 * time.Millisecond

func (s *side) observeOne(f scenario.Flow) outcome {
	if f.Protocol == scenario.HTTP {
		// This waits for the answer; what it is in the end is observed.
		_ = s.stage.Check(s.world.ctx, []scenario.Flow{f})
	}
	timeout := silence
	if f.Want.Fate == scenario.Translated {
		timeout = patience // an answer must come, however late on a busy machine
	}
	// One connection comes first: a silent server need not be asked a hundred times.
	got, err := s.stage.Observe(s.world.ctx, f, scenario.Effort{Tries: 1, Timeout: timeout})
	if err == nil && got.Fate == scenario.Translated && f.Source.Port() == 0 {
		var more scenario.Observed
		// The chance to miss one target is below 1e-10.
		more, err = s.stage.Observe(s.world.ctx, f,
			scenario.Effort{Tries: 25 * max(1, len(f.Want.Targets)-1), Timeout: timeout})
		if err == nil && more.Fate == got.Fate {
			got = merge(got, more)
		} else if err == nil {
			err = fmt.Errorf("%s, then %s", got, more)
		}
	}
	o := outcome{text: got.String(), byICMP: got.Fate == scenario.Refused && f.Protocol == testnet.TCP && !got.Reset}
	switch {
	case err != nil:
		o.text = err.Error()
	case f.Want.Sticky && got.Fate == scenario.Translated:
		o.asWanted = len(got.Targets) == 1 && slices.Contains(f.Want.Targets, got.Targets[0]) && s.stays(f, got.Targets[0])
	case f.Want.Chance:
		o.asWanted = got.Fate == scenario.Translated && len(got.Targets) == 1 && slices.Contains(f.Want.Targets,
			got.Targets[0])
	default:
		o.asWanted = got.Fate == f.Want.Fate && got.Answer == f.Want.Answer && slices.Equal(got.Targets, f.Want.Targets)
	}
	return o
}

// merge adds the targets of two observations with the same kind of outcome.
func merge(a, b scenario.Observed) scenario.Observed {
	for _, t := range b.Targets {
		if !slices.Contains(a.Targets, t) {
			a.Targets = append(a.Targets, t)
		}
	}
	slices.SortFunc(a.Targets, func(a, b scenario.Target) int { return a.Endpoint.Compare(b.Endpoint) })
	return a
}

// stays says whether a client still has its former target, if it may still have that
// target.
func (s *side) stays(f scenario.Flow, now scenario.Target) bool {
	before, known := s.stuck[f.Client()]
	s.stuck[f.Client()] = now
	return !known || before.Endpoint == now.Endpoint || !slices.ContainsFunc(f.Want.Targets, func(t scenario.Target) bool {
		return t.Endpoint == before.Endpoint
	})
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
			fmt.Fprintf(&b, "    %s/%d  %s\n        nftproxy:   %s\n        kube-proxy: %s\n", d.scenario, d.step, d.path,
				d.ours, d.theirs)
		}
	}
	return b.String()
}
