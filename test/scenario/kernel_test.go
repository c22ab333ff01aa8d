package scenario_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"nftproxy/daemon/listen"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/scenario"
)

// TestKernel loads the programs of each scenario into a kernel, one step after the other
// as the daemon does, and sends the flows as real packets. A scenario with tables of
// other programs runs twice: the other tables are loaded before ours, and after. Each step ends with an
// explanation of each flow (checkExplained).
func TestKernel(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	n := 0
	eachScenario(t, func(t *testing.T, s *scenario.Scenario) {
		if n++; testing.Short() && n%5 != 0 {
			t.Skip("-short: one scenario in five; TestInterpreter has them all")
		}
		t.Parallel()
		if s.OtherTables == "" {
			playInKernel(t, cmd, s, false)
			return
		}
		for name, after := range map[string]bool{"other tables first": false, "other tables last": true} {
			t.Run(name, func(t *testing.T) { playInKernel(t, cmd, s, after) })
		}
	})
}

func playInKernel(t *testing.T, cmd netfilter.NFT, s *scenario.Scenario, othersLast bool) {
	world := scenario.StageForTest(t, scenario.StageConfig{Bridge: s.Bridge()})
	loader := newLoader(t, world)
	cfg := config(t, s)
	health := serveHealth(t, world, cfg.NodePortAddresses)
	loadOthers := func(now bool) {
		if s.OtherTables != "" && now {
			if err := cmd.Load(world.Node, s.OtherTables); err != nil {
				t.Fatal(err)
			}
		}
	}
	compiler := ruleset.NewCompiler(cfg)
	follower := follow(t, s)
	loadOthers(!othersLast)
	for n := range s.Steps {
		step := &s.Steps[n]
		snapshot := follower.step(step)
		if err := world.Enter(step, snapshot); err != nil {
			t.Fatalf("step %d: %v", n+1, err)
		}
		loader.load(compiler.Compile(snapshot), follower.now(n))
		health.Notify(proxy.Sync{Snapshot: snapshot})
		loadOthers(othersLast && n == 0)
		if _, err := cmd.Ruleset(world.Node); err != nil {
			t.Errorf("step %d: %v", n+1, err)
		}
		for _, flows := range [][]scenario.Flow{step.Flows, step.Packets} {
			for _, err := range world.Check(t.Context(), flows) {
				t.Errorf("step %d: %v", n+1, err)
			}
		}
		checkExplained(t, world, step, snapshot)
	}
}

// serveHealth runs the servers of health check node ports on the node, as the
// daemon does.
func serveHealth(t *testing.T, world *scenario.Stage, on service.NodePortAddresses) *listen.HealthPorts {
	ports := listen.NewHealthPorts(listen.Config{
		NodePortAddresses: on, Within: world.Node.Do, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}, func() bool { return true })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- ports.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return ports
}

// loader loads programs into the node's kernel.
type loader struct {
	t     *testing.T
	conn  *kernel.Conn
	state nft.State
}

func newLoader(t *testing.T, world *scenario.Stage) *loader {
	t.Helper()
	conn, err := kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: world.Node.Fd()}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return &loader{t: t, conn: conn}
}

// load applies the batch from the last program to this one, and then sweeps the maps of
// remembered clients, as the daemon does.
func (l *loader) load(program *nft.Program, now time.Time) {
	l.t.Helper()
	batch, next := l.state.Plan(program, now)
	if err := l.conn.Apply(batch); err != nil {
		l.t.Fatalf("load the program: %v", err)
	}
	if len(ruleset.AffinityShrunk(l.state.Applied(), program)) > 0 {
		for _, m := range ruleset.AffinityMaps(program) {
			if _, _, err := l.conn.Sweep(l.t.Context(), m.Table, m.Set, m.Keep); err != nil {
				l.t.Fatal(err)
			}
		}
	}
	l.state = next
}
