package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	model "nftproxy/model/service"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/scenario"
	"nftproxy/watch"
)

// TestScenarios runs every scenario file from the API server to the servers
// that its flows reach.
func TestScenarios(t *testing.T) {
	plane := shared.scenarioPlane(t)
	eachScenario(t, func(t *testing.T, s *scenario.Scenario) {
		p := newPlay(t, plane, s)
		ours := p.addSide(ourCommand(t, plane, s))
		for n := range s.Steps {
			p.enter(n)
			if !ours.awaitMarker(patience) {
				t.Fatalf("step %d: not in the kernel within %v", n+1, patience)
			}
			for _, err := range ours.check(n) {
				t.Errorf("step %d: %v", n+1, err)
			}
		}
	})
}

// play is a scenario on an API server, with a stage for each proxy.
type play struct {
	t        *testing.T
	world    *world
	scenario *scenario.Scenario
	sides    []*side
	// begun is a time not later than the present step's first change.
	begun time.Time
}

// side is a proxy on the node of a stage.
type side struct {
	*play
	stage   *scenario.Stage
	command *exec.Cmd
	process *process // nil before the first step
	notices *netfilter.Monitor
	// stuck has the target that each client of a sticky flow got last.
	stuck map[string]scenario.Target
	// marked yields when the proxy knows the objects of the present step.
	marked <-chan time.Time
}

func newPlay(t *testing.T, plane *controlPlane, s *scenario.Scenario) *play {
	t.Helper()
	return &play{t: t, world: newWorld(t, plane, s), scenario: s}
}

func (p *play) addSide(command *exec.Cmd) *side {
	p.t.Helper()
	s := &side{play: p, command: command, stuck: map[string]scenario.Target{},
		stage: scenario.StageForTest(p.t, scenario.StageConfig{Bridge: p.scenario.Bridge()})}
	p.world.plane.connect(p.t, s.stage.Node)
	s.notices = listenIn(p.t, s.stage.Node)
	if p.scenario.OtherTables != "" {
		p.world.must(netfilter.NFTForTest(p.t).Load(s.stage.Node, p.scenario.OtherTables))
	}
	p.sides = append(p.sides, s)
	return s
}

// flows are all flows of a step.
func (p *play) flows(n int) []scenario.Flow {
	return slices.Concat(p.scenario.Steps[n].Flows, p.scenario.Steps[n].Packets)
}

// enter begins a step on the API server and all stages. The proxies are started
// once the first step's objects are there.
func (p *play) enter(n int) {
	p.t.Helper()
	step := &p.scenario.Steps[n]
	snapshot := p.snapshot(step)
	p.begun = time.Now()
	for _, s := range p.sides {
		p.world.must(s.stage.Enter(step, snapshot))
		s.marked = s.notices.Expect(p.world.nextMarker()...)
	}
	p.world.apply(step)
	for _, s := range p.sides {
		if s.process == nil {
			s.start()
		}
	}
}

func (s *side) start() {
	s.t.Helper()
	s.process = runIn(s.t, s.stage.Node, exec.Command(s.command.Path, s.command.Args[1:]...))
}

// snapshot is the proxy's snapshot of a step. The stage takes the endpoints from it.
func (p *play) snapshot(step *scenario.Step) model.Snapshot {
	p.t.Helper()
	var manifests strings.Builder
	for _, o := range step.Objects {
		manifests.WriteString("---\n" + o.YAML)
	}
	file := filepath.Join(p.t.TempDir(), "objects.yaml")
	p.world.must(os.WriteFile(file, []byte(manifests.String()), 0o600))
	mailbox := model.NewMailbox()
	watcher := watch.NewWatcher(watch.Options{Node: scenario.NodeName}, mailbox)
	ctx, cancel := context.WithTimeout(p.world.ctx, patience)
	ended := make(chan error, 1)
	go func() { ended <- watcher.RunManifests(ctx, file) }()
	select {
	case <-mailbox.C():
	case <-ctx.Done():
	}
	update, found := mailbox.Take()
	cancel()
	if err := <-ended; err != nil || !found {
		p.t.Fatalf("no snapshot of the step's manifests: %v", err)
	}
	return update.Snapshot
}

// ourCommand runs nftproxy for a scenario.
func ourCommand(t *testing.T, plane *controlPlane, s *scenario.Scenario) *exec.Cmd {
	t.Helper()
	return exec.Command(shared.nftproxy(t), append([]string{
		"run", "--hostname-override=" + scenario.NodeName, "-v=2", "--kubeconfig=" + plane.cluster.AdminKubeconfig(),
		"--healthz-bind-address=", "--metrics-bind-address=",
	}, s.CommandLine()...)...)
}

// awaitMarker waits until the proxy has all objects of the step in the kernel, and says
// whether it has.
func (s *side) awaitMarker(most time.Duration) bool {
	s.t.Helper()
	select {
	case <-s.marked:
		return true
	case <-s.process.Exited():
		s.t.Logf("%s ended: %v", s.process, s.process.Err())
	case <-time.After(most):
	}
	return false
}

// check sends the flows of a step and expects the wanted outcomes.
func (s *side) check(n int) []error {
	s.t.Helper()
	var errs []error
	s.repeatUntilDone(n, patience, func() bool {
		errs = s.stage.Check(s.world.ctx, s.flows(n))
		return len(errs) == 0
	})
	return errs
}

// lag is how long the test waits for kube-proxy.
const lag = 20 * time.Second

// repeatUntilDone calls attempt once. If a part of the step may come after the marker, it
// calls attempt again after each change of the node's nftables, until attempt returns true
// or the time is over.
func (s *side) repeatUntilDone(n int, most time.Duration, attempt func() bool) {
	s.t.Helper()
	timeout := time.After(most)
	for {
		_, next := s.notices.Last()
		done := attempt()
		switch {
		case !s.mayFollowMarker(n):
			return
		case done:
			last, _ := s.notices.Last()
			s.t.Logf("step %d: %s had it all in the kernel at the latest %v after the first change", n+1, s.name(),
				last.Sub(s.begun).Round(time.Millisecond))
			return
		}
		select {
		case <-next:
		case <-s.process.Exited():
			return
		case <-timeout:
			return
		}
	}
}

// name is the program's.
func (s *side) name() string { return filepath.Base(s.command.Path) }

// mayFollowMarker says whether a part of a step may come after the marker. Changes of Nodes,
// of ServiceCIDRs and of the node's addresses are not ordered with it. Clients with session
// affinity are sent to an endpoint that has gone until the sweep that follows the
// transaction, which may be the one with the marker.
func (s *side) mayFollowMarker(n int) bool {
	step := &s.scenario.Steps[n]
	isUnmarked := func(kind string) bool { return kind == "Node" || kind == "ServiceCIDR" }
	return n > 0 && (!slices.Equal(step.Addresses, s.scenario.Steps[n-1].Addresses) ||
		!slices.Equal(step.Networks, s.scenario.Steps[n-1].Networks) ||
		slices.ContainsFunc(step.Changed, func(o scenario.Object) bool { return isUnmarked(o.Kind) }) ||
		slices.ContainsFunc(step.Deleted, func(k scenario.Key) bool { return isUnmarked(k.Kind) }) ||
		slices.ContainsFunc(s.flows(n), func(f scenario.Flow) bool { return f.Want.Sticky }))
}
