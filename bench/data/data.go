// Package data promises the cost of a proxy's rules for packets: how long a connection
// takes to set up.
//
// The rules of each proxy at each number of Services stay in a network namespace of their
// own after the proxy has ended. Two more nodes have no proxy, and the smallest possible
// rule. The package measures all nodes in turn, a few milliseconds each, so that other
// work on the machine affects them alike, and compares them round by round. It does not
// measure the proxies themselves: package control does.
//
// Ejection measures what --nftproxy-eject costs a node.
package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
)

// Config says what is measured.
type Config struct {
	proxies.Setup
	// Sizes are numbers of Services, growing.
	Sizes  []int
	Effort Effort
}

// Effort is how much is measured.
type Effort struct {
	// Rounds is how often each node has its turn; no more begin when Budget is
	// used up and there were LeastRounds.
	Rounds, LeastRounds int
	Budget              time.Duration
	// Burst is how many connections make a turn; a turn ends early after Turn,
	// when there were LeastBurst.
	Burst, LeastBurst int
	Turn              time.Duration
	// First has the service that was created first measured beside the last.
	First bool
	// Again has a second node with the same static rule: how far two of the same
	// are apart.
	Again bool
}

// Full is what a whole run measures.
func Full() Effort {
	return Effort{
		Rounds: 100, LeastRounds: 15, Budget: 90 * time.Second, Burst: 1000, LeastBurst: 100, Turn: 50 * time.Millisecond,
		First: true, Again: true,
	}
}

// Quick is what a run of some seconds measures.
func Quick() Effort {
	return Effort{
		Rounds: 25, LeastRounds: 8, Budget: 8 * time.Second, Burst: 500, LeastBurst: 50, Turn: 20 * time.Millisecond,
	}
}

// Sizes lists the numbers of Services of a whole run.
func Sizes() []int { return []int{1, 1_000, 10_000} }

// QuickSizes lists those of a quick one.
func QuickSizes() []int { return []int{1, 1_000} }

// LeftOut says what a quick run does without.
func LeftOut() []string {
	return []string{
		"data plane: 10,000 services; the service that was created first",
		"data plane: most rounds; the ratios of a few are not fit to tell 5 %",
	}
}

// Validate says what is wrong with the sizes.
func (c Config) Validate() error {
	before := 0
	for _, n := range c.Sizes {
		if n <= before || n > maxServices {
			return fmt.Errorf("%d services: want growing numbers from 1 to %d", n, maxServices)
		}
		before = n
	}
	return nil
}

// Cells is how many cells Run puts.
func (c Config) Cells() int {
	return len(c.Sizes) * len(c.backends()) * len(c.Effort.questions())
}

// backends lists what the package compares, in the order of the tables. Another
// nft makes no other rules.
func (c Config) backends() []string {
	list := []string{result.NFTProxy, result.KubeProxyNFTables, result.KubeProxyLegacy, result.KubeProxyIPTables}
	list = slices.DeleteFunc(list, func(name string) bool { return !c.Wants(name) })
	if c.Earlier != "" {
		list = []string{result.NFTProxy, result.Earlier}
	}
	return append(list, result.OneStaticRule, result.NoProxy)
}

// again is a second node with the static rule. It has no cells: the ratio of the
// first one to it is a part of those.
const again = "a second one"

// Run measures all of it. What cannot be measured is a cell that says why; an
// error is one of the whole run.
func Run(ctx context.Context, c Config, sink result.Sink) (err error) {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("data plane: %w", err)
	}
	list, err := c.All(ctx, sink)
	if err != nil {
		return fmt.Errorf("data plane: %w", err)
	}
	list = slices.DeleteFunc(list, func(p proxies.Proxy) bool { return !slices.Contains(c.backends(), p.Name) })
	r := &run{Config: c, Sink: sink}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.prepare(ctx, list); err != nil {
		return fmt.Errorf("data plane: %w", err)
	}
	if err := r.measure(ctx); err != nil {
		return fmt.Errorf("data plane: %w", err)
	}
	return nil
}

// run is the measuring.
type run struct {
	Config
	result.Sink
	sites []*site
}

func (r *run) close() error {
	var errs []error
	for _, s := range r.sites {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}
