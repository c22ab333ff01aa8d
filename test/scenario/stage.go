package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"nftproxy/model/service"
	"nftproxy/test/lib/testnet"
)

// StageConfig chooses how a stage is made.
type StageConfig struct {
	// Bridge is the interface of the node whose ports are the pods. If it is empty, each
	// pod has a veth pair.
	Bridge string
	// Silence is the time without an answer after which a flow counts as dropped; 0
	// means 100 ms. A flow that should be answered gets all the time that it needs.
	Silence time.Duration
}

// defaultSilence is several hundred times as long as an answer takes.
const defaultSilence = 100 * time.Millisecond

// Stage is a node and the network around it. Only one goroutine at a time may call Enter
// or Check. Any number may call Observe between two calls of Enter.
type Stage struct {
	// Node is the namespace for the proxy.
	Node *testnet.Namespace

	config StageConfig
	now    *plan
	// spaces are the namespaces by place, the node's among them, and links the
	// node's ends of the links to them.
	spaces  map[place]*testnet.Namespace
	links   map[place]testnet.End
	pods    int // made so far
	servers map[server]*testnet.Server
	// sniffer sees the packets that leave the node for beyond; sniffed is how many of
	// them earlier checks have read.
	sniffer *testnet.Sniffer
	sniffed int
	// ports counts the source ports given out.
	ports atomic.Uint32
	// last has the endpoint that each sticky client got last.
	last map[string]netip.AddrPort
}

// NewStage makes a node without pods, clients or servers. The error matches fs.ErrPermission when
// the process may not make namespaces.
func NewStage(config StageConfig) (*Stage, error) {
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

// StageForTest is NewStage for a scenario's test, closed at its end. It skips or fails the
// test as testnet.StageForTest does.
func StageForTest(t testnet.TB, config StageConfig) *Stage {
	t.Helper()
	testnet.SkipUnwanted(t)
	s, err := NewStage(config)
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

// Enter builds the network of the step, with the endpoints of the snapshot. It does not
// touch what both the last step and this one have.
func (s *Stage) Enter(step *Step, snapshot service.Snapshot) error {
	next := draft(step, snapshot)
	if err := s.leave(next); err != nil {
		return fmt.Errorf("leave the last step: %w", err)
	}
	if err := s.arrive(next); err != nil {
		return fmt.Errorf("enter the step: %w", err)
	}
	s.now = next
	fixed := func(f Flow) bool { return f.Source.Port() != 0 }
	if slices.ContainsFunc(slices.Concat(step.Flows, step.Packets), fixed) {
		return s.Node.FlushConntrack()
	}
	return nil
}

// Passes returns whether a flow of the present step reaches the node's nat hooks. It does
// not if client and destination are in the same other namespace.
func (s *Stage) Passes(f Flow) bool {
	return f.Origin == Node || s.now.home(f.Source.Addr()) != s.now.home(f.Destination.Addr())
}
