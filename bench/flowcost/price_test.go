package flowcost

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/flows"
	modelflows "nftproxy/model/flows"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/flowtable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

// served is the Service of a site as nftproxy serves it.
func served() (service.Snapshot, error) {
	return gen.ReadSnapshot(strings.NewReader(fmt.Sprintf("node n\nservice a/b created 2026-01-01T00:00:00Z\n"+
		"cluster-ip %v\nport a tcp 80\nendpoint %v:8080 - ready serving\n", serviceAddr, serverAddr)))
}

// follow is nftproxy's own follower of connections. Its argument is the share.
func follow(args []string) error {
	mode, err := service.ParseFlows(args[0])
	if err != nil {
		return err
	}
	snapshot, err := served()
	if err != nil {
		return err
	}
	table, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return err
	}
	ready := make(chan error, 1)
	f := flows.New(flows.Config{Table: table, Services: ruleset.DefaultTable, Mode: mode,
		Index: conntrack.NewIndex(conntrack.Options{}),
		Observe: func(c modelflows.Change) {
			if c.Settled {
				counts.new.Add(1)
			}
			if c.Finished {
				counts.destroy.Add(1)
				counts.bytes.Add(int64(c.BytesFrom + c.BytesTo))
			}
		},
		Thinned: func(int, service.Name, int) {},
		Failed: func(err error) {
			select {
			case ready <- err:
			default:
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			}
		},
	})
	counts.open = func() int64 { return int64(f.Counts().Open) }
	f.Notify(snapshot)
	go func() { ready <- f.Run(context.Background()) }()
	return <-ready
}

// serve has nftproxy's rules for the Service in place of those that are there.
func (s *site) serve(mode service.Flows) {
	s.Helper()
	snapshot, err := served()
	testnet.Require(s, err)
	cfg := ruleset.Config{Table: ruleset.DefaultTable}
	cfg.Flows, cfg.ClusterCIDRs = mode, []netip.Prefix{clusterCIDR}
	conn, err := kernel.Open(kernel.Config{NetNS: s.node.Fd()})
	testnet.Require(s, err)
	defer conn.Close()
	_, err = flowtable.Remove(ruleset.DefaultTable, s.node.Fd())
	testnet.Require(s, err)
	testnet.Require(s, conn.DeleteTables(ruleset.DefaultTable))
	batch, _ := nft.State{}.Plan(ruleset.Compile(cfg, snapshot), time.Time{})
	testnet.Require(s, conn.Apply(batch))
	testnet.Require(s, s.node.FlushConntrack())
}

// shares are those whose price is measured. The first one is a control: both nodes are alike then.
func shares() []service.Flows { return []service.Flows{service.FlowsOff, 256, 16, 1} }

// TestPrice logs what nftproxy's own flows cost for each connection, in the kernel and in a process that does what
// nftproxy run does for them, beside another node with nftproxy and without flows.
func TestPrice(t *testing.T) {
	whenNamed(t)
	base, subject := newSite(t), newSite(t)
	base.sysctl("nf_conntrack_events", "0")
	subject.sysctl("nf_conntrack_events", "0")
	rounds, rates := 3, []int{1000, 10_000}
	if testing.Short() {
		rounds, rates = 1, []int{10_000}
	}
	for _, rate := range rates {
		n := min(most, 2*rate)
		measured := make([]figures, len(shares()))
		for range rounds {
			for i, mode := range shares() {
				f := &measured[i]
				base.serve(service.FlowsOff)
				subject.serve(mode)
				var l *listener
				var before, after report
				if mode.Rate() > 0 {
					l = subject.listen("follow " + mode.String())
				}
				base.open(base.connections[:n])
				subject.open(subject.connections[:n])
				if l != nil {
					before = l.settled()
				}
				more, of, reached := generate(base, subject, n, rate)
				f.kernel, f.base, f.reached = append(f.kernel, more...), append(f.base, of...), append(f.reached, reached)
				if l != nil {
					after = l.settled()
					l.stop()
				}
				f.process = append(f.process, float64(after.CPU-before.CPU)/1e3/float64(n))
				f.seen = append(f.seen, float64(after.New-before.New)/float64(n))
			}
		}
		for i, mode := range shares() {
			f := &measured[i]
			k, off := trimmed(f.kernel)
			of, _ := trimmed(f.base)
			p, _ := trimmed(f.process)
			t.Logf("%5d/s %-5s kernel %6.2f±%.2f of %.1f, process %6.2f us: %6.3f %% of a core; seen %.4f; %.0f/s", rate, mode,
				k, off, of, p, (k+p)*float64(rate)/1e4, mean(f.seen), mean(f.reached))
			least := 0.9
			if rate > 1000 { // of more than it remembers, it follows fewer
				least = 0.1
			}
			if mode.Rate() == 1 && mean(f.seen) < least {
				t.Errorf("it saw %.3f of the connections", mean(f.seen))
			}
		}
	}
}

// TestEstablished logs what flows cost for a packet of an established connection, in each direction.
func TestEstablished(t *testing.T) {
	whenNamed(t)
	const packets, opened = 20, 5
	base, subject := newSite(t), newSite(t)
	conversations := [2][][]packet{base.connections, subject.connections}
	for side, from := range []string{"from clients", "to clients"} {
		for _, mode := range shares() {
			var kernel, whole []float64
			for range 3 {
				for i, s := range []*site{base, subject} {
					s.serve([]service.Flows{service.FlowsOff, mode}[i])
				}
				var l *listener
				if mode.Rate() > 0 {
					l = subject.listen("follow " + mode.String())
				}
				for i, s := range []*site{base, subject} {
					s.connections = nil
					for _, c := range conversations[i] {
						s.connections = append(s.connections, c[:opened])
					}
					s.open(s.connections)
					for j, c := range conversations[i] { // The last packet with data, again and again.
						s.connections[j] = slices.Repeat([]packet{c[opened-2+side]}, packets)
					}
				}
				const rate = 20_000
				more, of, _ := generate(base, subject, most, rate)
				kernel, whole = append(kernel, more...), append(whole, of...)
				if l != nil {
					l.stop()
				}
			}
			k, off := trimmed(kernel)
			of, _ := trimmed(whole)
			t.Logf("%-12s %-5s %6.3f±%.3f of %.2f us", from, mode, k/packets, off/packets, of/packets)
		}
	}
}
