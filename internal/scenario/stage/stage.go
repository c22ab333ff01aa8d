package stage

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"nftproxy/internal/scenario"
	"nftproxy/internal/service"
	"nftproxy/internal/testnet"
)

// Config chooses how a stage is made.
type Config struct {
	// Bridge is the interface of the node that its pods are ports of; empty for
	// a veth pair each.
	Bridge string
	// Silence is how long nobody may answer for a flow to count as dropped;
	// 100 ms if it is 0. A flow that is to end otherwise gets as long as it takes.
	Silence time.Duration
}

// defaultSilence is several hundred times what an answer takes.
const defaultSilence = 100 * time.Millisecond

// Stage is a node and the world around it. Enter and Check are for one caller at
// a time; between two Enters, Observe is for any number.
type Stage struct {
	// Node is where a proxy belongs.
	Node *testnet.Namespace

	config Config
	now    *plan
	// spaces are the namespaces by place, the node's among them, and links the
	// node's ends of the links to them.
	spaces  map[place]*testnet.Namespace
	links   map[place]testnet.End
	pods    int // made so far
	servers map[server]*testnet.Server
	// sniffer hears what leaves the node for beyond; sniffed is how much of that
	// earlier checks have looked at.
	sniffer *testnet.Sniffer
	sniffed int
	// ports counts the source ports given out.
	ports atomic.Uint32
	// last has the endpoint that each sticky client got last.
	last map[string]netip.AddrPort
}

// New makes a node with nobody around. The error matches fs.ErrPermission when
// the process may not make namespaces.
func New(config Config) (*Stage, error) {
	if config.Silence == 0 {
		config.Silence = defaultSilence
	}
	s := &Stage{
		config: config, now: &plan{},
		spaces: map[place]*testnet.Namespace{}, links: map[place]testnet.End{}, servers: map[server]*testnet.Server{},
		last: map[string]netip.AddrPort{},
	}
	if err := s.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("make stage: %w", err), s.Close())
	}
	return s, nil
}

// NewForTest is New for a scenario's test, closed at its end. Without the
// permission to make namespaces the test is skipped, or fails if CI or
// REQUIRE_PRIVILEGED is set in the environment.
func NewForTest(t testnet.TB, config Config) *Stage {
	t.Helper()
	s, err := New(config)
	testnet.Require(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close stage: %v", err)
		}
	})
	return s
}

// Close removes everything. Processes started in the namespaces are the
// caller's to stop, before.
func (s *Stage) Close() error {
	var errs []error
	for _, ns := range s.spaces {
		errs = append(errs, ns.Close())
	}
	return errors.Join(errs...)
}

// Enter makes the world that of the step, with the endpoints of the snapshot.
// What was there before and still is to be stays as it is.
func (s *Stage) Enter(step *scenario.Step, snapshot service.Snapshot) error {
	next := draft(step, snapshot)
	if err := s.leave(next); err != nil {
		return fmt.Errorf("leave the last step: %w", err)
	}
	if err := s.arrive(next); err != nil {
		return fmt.Errorf("enter the step: %w", err)
	}
	s.now = next
	fixed := func(f scenario.Flow) bool { return f.Source.Port() != 0 }
	if slices.ContainsFunc(slices.Concat(step.Flows, step.Packets), fixed) {
		return s.Node.FlushConntrack()
	}
	return nil
}

// Passes says whether a flow of the present step gets to the node's nat hooks:
// it does not if client and destination are neighbours elsewhere.
func (s *Stage) Passes(f scenario.Flow) bool {
	return f.Origin == scenario.Node || s.now.home(f.Source.Addr()) != s.now.home(f.Destination.Addr())
}
