package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/test/scenario"
	"nftproxy/watch"
)

// eachScenario runs a test for each file under testdata.
func eachScenario(t *testing.T, test func(*testing.T, *scenario.Scenario)) {
	t.Helper()
	scenario.Each(t, "testdata", test)
}

// follower turns the steps of a scenario into snapshots, by the daemon's own
// way from manifests.
type follower struct {
	t   *testing.T
	dir string
	// networks are the step's.
	networks atomic.Pointer[[]netip.Prefix]
	watcher  *watch.Watcher
	mailbox  *service.Mailbox
	started  bool
}

func follow(t *testing.T, s *scenario.Scenario) *follower {
	f := &follower{t: t, dir: t.TempDir(), mailbox: service.NewMailbox()}
	cfg, err := s.Config()
	if err != nil {
		t.Fatal(err)
	}
	balance, err := s.Balance()
	if err != nil {
		t.Fatal(err)
	}
	f.watcher = watch.NewWatcher(watch.Options{
		Node: scenario.NodeName, Settings: cfg.Settings, Balance: balance, SlowStart: true,
		Networks: func([]netip.Prefix) []netip.Prefix { return *f.networks.Load() },
		Report:   func(p watch.Problem) { t.Logf("problem: %v", p) },
	}, f.mailbox)
	return f
}

// step returns the snapshot of the step.
func (f *follower) step(step *scenario.Step) service.Snapshot {
	f.t.Helper()
	var all strings.Builder
	for _, o := range step.Objects {
		fmt.Fprintf(&all, "---\n%s", o.YAML)
	}
	marker := fmt.Sprintf("step-%d", time.Now().UnixNano())
	fmt.Fprintf(&all, "---\n%s", marking(marker))
	f.networks.Store(&step.Networks)
	f.watcher.RoutesChanged()
	f.watcher.SetHostAddresses(step.Addresses, nil)
	// Renamed into place, so that no half of it is read.
	next := filepath.Join(f.t.TempDir(), "objects.yaml")
	if err := errors.Join(os.WriteFile(next, []byte(all.String()), 0o644),
		os.Rename(next, filepath.Join(f.dir, "objects.yaml"))); err != nil {
		f.t.Fatal(err)
	}
	f.start()
	return f.await(marker)
}

// marking is a service that tells one reading of the manifests from another,
// with an address that no scenario uses.
func marking(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: marker}\n"+
		"spec: {clusterIP: 198.18.0.1, ipFamilies: [IPv4], clusterIPs: [198.18.0.1], ports: [{port: 9}]}\n", name)
}

func (f *follower) start() {
	if f.started {
		return
	}
	f.started = true
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.watcher.RunManifests(ctx, f.dir) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Error(err)
		}
	})
}

// await returns the first snapshot that has the marker, without it.
func (f *follower) await(marker string) service.Snapshot {
	f.t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case <-f.mailbox.C():
		case <-timeout:
			f.t.Fatalf("no snapshot with %s", marker)
		}
		update, ok := f.mailbox.Take()
		if !ok {
			continue
		}
		name := service.NewName("marker", marker)
		if _, ok := update.Snapshot.Services.Get(name); ok {
			s := update.Snapshot
			s.Services = s.Services.Delete(name)
			return s
		}
	}
}

// now is a time for each step, far enough from the last for idle chains to go.
func (f *follower) now(step int) time.Time {
	return time.Unix(0, 0).Add(time.Duration(step) * 2 * nft.IdleLife)
}
