package data

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// site is a node with the rules of one backend. A pod, the node and a client outside
// connect to another pod.
type site struct {
	backend string
	// services is how many the rules are for; 0 if they are for one target, or
	// for none.
	services int
	topology *testnet.Topology
	pod      *testnet.Pod
	server   *listener
	// failed is why nothing can be measured.
	failed error
}

// furnish puts pods on a node.
func (s *site) furnish(t *testnet.Topology) (err error) {
	s.topology = t
	if s.pod, err = t.AddPod("client"); err != nil {
		return err
	}
	server, err := t.AddPod("server", endpointIPs()...)
	if err != nil {
		return err
	}
	if s.server, err = listen(server.NS, controlplane.TargetPort); err != nil {
		return err
	}
	// Where there is no proxy, those outside ask the pods themselves.
	return t.Outside.AddRoute(t.PodCIDRs[0], t.NodeAddrs.V4())
}

func (s *site) close() error {
	var errs []error
	if s.server != nil {
		errs = append(errs, s.server.close())
	}
	if s.topology != nil {
		errs = append(errs, s.topology.Close())
	}
	return errors.Join(errs...)
}

// newBareSite makes a site without a proxy.
func newBareSite(backend string) (*site, error) {
	s := &site{backend: backend}
	t, err := testnet.NewTopology(testnet.Config{})
	if err == nil {
		err = s.furnish(t)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// newProxySite makes a site that a proxy can be started on.
func newProxySite(n *proxies.Node, backend string, services int) (*site, error) {
	s := &site{backend: backend, services: services}
	if err := s.furnish(n.Topology); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// program has a proxy write its rules, and ends it. The error has the end of its
// log.
func (s *site) program(ctx context.Context, p proxies.Proxy, n *proxies.Node, limit time.Duration) error {
	process, err := p.Start(n)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err = p.First(limited, process)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no first program within %v", limit)
	} else if err != nil {
		err = fmt.Errorf("%w\n%s", err, process.Tail(20))
	}
	stopErr := p.Stop(context.WithoutCancel(ctx), process)
	if errors.Is(err, child.ErrEnded) {
		return err
	}
	return errors.Join(err, stopErr)
}

// from is where the clients of a way are.
func (s *site) from(w way) *testnet.Namespace {
	switch w.from {
	case fromNode:
		return s.topology.Node
	case fromOutside:
		return s.topology.Outside
	}
	return s.pod.NS
}

// to is the address that they connect to.
func (s *site) to(t target) netip.AddrPort {
	if s.backend == result.NoProxy {
		return t.direct()
	}
	return t.service(max(1, s.services), s.topology.NodeAddrs.V4())
}

// aim gets a site without a proxy ready for a target.
func (s *site) aim(nft netfilter.NFT, t target) error {
	script := "flush ruleset\n"
	switch s.backend {
	case result.OneStaticRule, again:
		script += t.staticRule(s.to(t))
	case result.NoProxy:
		script += tracked
	default:
		return nil
	}
	return nft.Load(s.topology.Node, script)
}

// probes is how many connections show whether a way works.
const probes = 60

// check tells whether connections to a target end where they should: at all of
// the endpoints in turn where a proxy spreads them, at one where it must not, or
// where no proxy runs.
func (s *site) check(t target) error {
	if err := s.topology.Node.FlushConntrack(); err != nil {
		return err
	}
	if _, err := s.server.drain(); err != nil {
		return err
	}
	if _, err := burst(s.from(t.way), s.to(t), make([]time.Duration, 0, probes), probes, 0); err != nil {
		return err
	}
	counts, err := s.server.endpoints()
	if err != nil {
		return err
	}
	seen := 0
	for _, n := range counts {
		seen += n
	}
	spread := s.services > 0 && !t.affinity
	if seen < probes || spread != (len(counts) > 1) {
		return fmt.Errorf("%d connections to %v reached %d endpoints, %d times", probes, s.to(t), len(counts), seen)
	}
	return nil
}
