package conntrack

import (
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// Another program translates the addresses and ports of a Service before our rules, as k3s'
// ServiceLB, the portmap plugin or a DNS cache may do: by the cluster IP, the node port, the external
// IP and the load balancer's address. Its flows keep their entries through all changes, errors and
// restarts, and ours go.
func TestForeignTranslation(t *testing.T) {
	families(t, func(l *live) {
		const lines = "  cluster-ip CLUSTER\n  external-ip EXTERNAL\n  load-balancer-ip NODE\n  port dns udp 53 node-port " +
			"30053\n"
		end := l.startCleaner()
		l.become(webWith(lines, "ONE-POD"), "")
		l.standBy()
		loadRules(l, l.Node, l.addrs.Replace(`table FAMILY hostports {
	chain prerouting {
		type nat hook prerouting priority -101; policy accept;
		FAMILY daddr { CLUSTER, EXTERNAL, NODE } udp dport 53 dnat to TWO-POD
		FAMILY daddr NODE udp dport 30053 dnat to TWO-POD
	}
}`))
		var foreign []*conn
		ids := map[*conn]uint32{}
		for _, to := range []string{l.at("CLUSTER", 53), l.at("EXTERNAL", 53), l.at("NODE", 53), l.at("NODE", 30053)} {
			c := l.dial(l.client, to)
			c.wantAnswer("two")
			f, _ := c.entry()
			foreign, ids[c] = append(foreign, c), f.ID
		}
		ours := l.dial(l.Node, l.at("CLUSTER", 53)) // The other program does not translate for the node itself.
		become := func(removed string, endpoints ...string) {
			l.Helper()
			l.become(webWith(lines, endpoints...), removed)
			for _, c := range foreign {
				c.wantAnswer("two")
				if f, found := c.entry(); !found || f.ID != ids[c] {
					l.Errorf("%v: entry %v, found %t, had ID %d", c.tuple(), f, found, ids[c])
				}
			}
		}
		ours.wantAnswer("one")
		become("endpoint gone: 1", "REMOTE-POD")
		ours.wantAnswer("remote")
		become("endpoint gone: 1")
		ours.wantNoEntry()
		become("", "ONE-POD", "REMOTE-POD")
		become("", "REMOTE-POD")
		ours.wantAnswer("remote")
		// After an error, or another program's change of our rules, nobody knows what the rules did.
		l.cleaner.SyncDone(l.write(webWith(lines, "ONE-POD")), true)
		l.updates++
		l.wantRemoved("endpoint gone: 1")
		ours.wantAnswer("one")
		become("", "ONE-POD", "REMOTE-POD")
		end()

		// A restart, and an endpoint has gone meanwhile.
		l.startCleaner()
		m, err := l.kernel.Read(ruleset.Compile(l.cfg, l.builder.Snapshot()))
		l.must(err)
		l.cleaner.ServedBefore(func() service.Snapshot { return ruleset.ReadBack(m, l.cfg.Table, l.builder.Snapshot().Node) })
		l.updates++
		become("endpoint gone: 1", "REMOTE-POD")
		ours.wantAnswer("remote")
		// The other program's flows stay when its target is an endpoint of the Service as well.
		become("", "REMOTE-POD", "TWO-POD")
	})
}

// Where it is not known what the rules did before, a flow to an address that is no endpoint goes
// only if no other program translates. A flow to a former endpoint goes in any case: also later,
// when a client that was remembered for the endpoint has made it.
func TestCleanerSparesFlowsOfOthers(t *testing.T) {
	const endpoint = "    endpoint 10.0.0.1:8080 n1 ready serving\n"
	foreign := dnated(service.TCP, "10.0.0.8", "10.96.0.1:80", "10.0.0.7:8080", 0)
	former := dnated(service.TCP, "10.0.0.9", "10.96.0.1:80", "10.0.0.1:8080", 0)
	for name, c := range map[string]struct {
		alone   func() bool
		removed int // of the foreign flow
	}{
		"nobody knows": {nil, 0},
		"not alone":    {func() bool { return false }, 0},
		"alone":        {func() bool { return true }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &slowTable{dump: time.Millisecond}
				b := startWith(t, table, CleanerConfig{Alone: c.alone})
				show := func(f Flow) { table.set(func() { table.flows = []Flow{f} }) }
				left := func(what string, want int) {
					t.Helper()
					b.after(10*time.Second, time.Now())
					table.set(func() {
						if len(table.flows) != want {
							t.Errorf("%s: left %v", what, table.flows)
						}
					})
				}
				show(foreign)
				b.SyncDone(parse(t, cluster), true)
				left("another program's flow at the start", 1-c.removed)
				show(foreign)
				b.SyncDone(parse(t, replace(endpoint, "")(cluster)), false)
				left("another program's flow after a change", 1)
				b.CheckAll()
				left("another program's flow after a sweep", 1)
				show(former)
				b.CheckAll()
				left("a flow to a former endpoint", 0)
				time.Sleep(formerFor)
				show(former)
				b.CheckAll()
				left("a flow to an address that was an endpoint long ago", 1)
				if n := len(b.judge.index.departed.order); n > 0 {
					t.Errorf("%d departures are remembered", n)
				}
			})
		})
	}
}

// The Cleaner does not judge a flow by older Services than its rules: here the rules
// come while it reads the table.
func TestCleanerSparesFlowsOfYoungerRules(t *testing.T) {
	with := func(endpoints string) service.Snapshot {
		return parse(t, replace("  port stream sctp 80\n", "  port stream sctp 80\n  port dns udp 81\n"+endpoints)(cluster))
	}
	const one, two = "    endpoint 10.0.0.1:8081 n1 ready serving\n", "    endpoint 10.0.0.2:8081 n1 ready serving\n"
	old := dnated(service.UDP, "10.0.0.8", "10.96.0.1:81", "10.0.0.3:8081", SeenReply)
	young := dnated(service.UDP, "10.0.0.9", "10.96.0.1:81", "10.0.0.2:8081", SeenReply)
	// The younger rules come soon after a look at the reports, or later.
	for _, dump := range []time.Duration{readEvery / 2, 2 * readEvery} {
		t.Run(dump.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &slowTable{dump: dump, flows: []Flow{old, young}}
				b := start(t, table)
				b.SyncDone(with(one), true)
				b.after(table.dump/2, time.Now()) // The pass has read both flows.
				b.SyncDone(with(one+two), false)
				b.after(time.Minute, time.Now())
				if diff := gocmp.Diff([]Flow{young}, table.flows, gocmp.Comparer(func(a, b Flow) bool {
					return a == b
				})); diff != "" {
					t.Errorf("flows left (-want +got):\n%s", diff)
				}
				if diff := gocmp.Diff(map[Reason]int{EndpointGone: 1}, b.runs[0].Removed); diff != "" {
					t.Errorf("removed by the first pass (-want +got):\n%s", diff)
				}
			})
		})
	}
}
