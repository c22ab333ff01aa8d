package conntrack

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"nftproxy/model/service"
)

// web returns the tested Service with its endpoints. They are ready and serve unless their
// text says otherwise: "ONE-POD", "TWO-POD terminating".
func web(endpoints ...string) string {
	return webWith("  port dns udp 53 node-port 30053\n", endpoints...)
}

// webWith returns the same with other lines before the endpoints.
func webWith(lines string, endpoints ...string) string {
	text := bystander + "service default/web created 2026-01-01T00:00:00Z\n"
	if !strings.Contains(lines, "cluster-ip") {
		text += "  cluster-ip CLUSTER\n"
	}
	text += lines
	for _, e := range endpoints {
		node := "node"
		if strings.HasPrefix(e, "REMOTE") {
			node = "remote"
		}
		at, conditions, found := strings.Cut(e, " ")
		if !found {
			conditions = "ready serving"
		}
		text += "    endpoint " + at + " " + node + " " + conditions + "\n"
	}
	return text
}

// TestEndpointRemoval and the tests after it each have one change that can make real flows
// stale. A client keeps sending from one socket. Its next datagram reaches a live endpoint
// or is refused, and no other flow is touched.
func TestEndpointRemoval(t *testing.T) {
	families(t, func(l *live) {
		l.become(web("ONE-POD", "TWO-POD"), "")
		l.standBy()
		clients := []*conn{l.dial(l.client, l.at("CLUSTER", 53)), l.dial(l.Outside, l.at("NODE", 30053)),
			l.dial(l.Node, l.at("CLUSTER", 53))}
		stays := map[string]int{}
		for _, c := range clients {
			stays[c.ask()]++
		}
		want := ""
		if stays["one"] > 0 {
			want = fmt.Sprintf("endpoint gone: %d", stays["one"])
		}
		l.become(web("TWO-POD"), want)
		for _, c := range clients {
			c.wantAnswer("two")
		}
		l.become(web("ONE-POD"), "endpoint gone: 3")
		for _, c := range clients {
			c.wantAnswer("one")
		}
	})
}

// A terminating endpoint keeps its flows as long as it serves.
func TestEndpointTerminates(t *testing.T) {
	families(t, func(l *live) {
		l.become(web("ONE-POD"), "")
		l.standBy()
		c := l.dial(l.client, l.at("CLUSTER", 53))
		c.wantAnswer("one")
		l.become(web("ONE-POD serving terminating", "TWO-POD"), "")
		c.wantAnswer("one")
		l.dial(l.client, l.at("CLUSTER", 53)).wantAnswer("two")
		l.become(web("ONE-POD terminating", "TWO-POD"), "endpoint gone: 1")
		c.wantAnswer("two")
	})
}

func TestServiceAddressChange(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		from          string // where the client is
		old, new      string
		port, newPort int
	}{
		"cluster IP": {"  cluster-ip CLUSTER\n  port dns udp 53\n", "  cluster-ip BALANCER\n  port dns udp 53\n", "pod",
			"CLUSTER", "BALANCER", 53, 53},
		"port": {"  port dns udp 53\n", "  port dns udp 54\n", "pod", "CLUSTER", "CLUSTER", 53, 54},
		"external IP": {
			"  external-ip EXTERNAL\n  port dns udp 53\n", "  external-ip BALANCER\n  port dns udp 53\n", "outside", "EXTERNAL",
			"BALANCER", 53, 53,
		},
		"node port": {"  port dns udp 53 node-port 30053\n", "  port dns udp 53 node-port 30054\n", "outside", "NODE", "NODE",
			30053, 30054},
	} {
		t.Run(name, func(t *testing.T) {
			families(t, func(l *live) {
				from := l.client
				if c.from == "outside" {
					from = l.Outside
				}
				l.become(webWith(c.before, "ONE-POD"), "")
				l.standBy()
				old := l.dial(from, l.at(c.old, c.port))
				old.wantAnswer("one")
				l.become(webWith(c.after, "ONE-POD"), "service gone: 1")
				old.wantNoEntry()
				l.dial(from, l.at(c.new, c.newPort)).wantAnswer("one")
				if name == "port" || name == "node port" {
					old.wantAnswer("refused")
				}
			})
		})
	}
}

// A client sends before the Service has an endpoint.
func TestFirstEndpoint(t *testing.T) {
	families(t, func(l *live) {
		l.become(web(), "")
		c := l.dial(l.client, l.at("CLUSTER", 53))
		c.wantAnswer("refused")
		l.become(web("ONE-POD"), "")
		l.standBy()
		c.wantAnswer("one")
	})
}

// A client sends before a Service has the address.
func TestAddressAppears(t *testing.T) {
	families(t, func(l *live) {
		l.become(web("ONE-POD"), "")
		l.standBy()
		c, n := l.dial(l.client, l.at("EXTERNAL", 53)), l.dial(l.client, l.at("NODE", 30054))
		made := listen(l, l.Node)
		c.send()
		made.await(l, entry{service.UDP, c.tuple()})
		l.become(webWith("  external-ip EXTERNAL\n  port dns udp 53\n"), "service address: 1")
		c.wantAnswer("refused")
		c.wantNoEntry()
		l.become(webWith("  external-ip EXTERNAL\n  port dns udp 53\n", "TWO-POD"), "")
		c.wantAnswer("two")

		// A process on the node listens on the number of a node port, until it stops.
		l.listenSilently(l.Node, netip.AddrPortFrom(l.addr(l.NodeAddrs), 30054), "node")
		n.wantHeard("node")
		l.become(webWith("  external-ip EXTERNAL\n  port dns udp 53 node-port 30054\n", "TWO-POD"), "node port: 1")
		n.wantAnswer("two")
	})
}

// New source ranges exclude a client that has had no answer yet.
func TestSourceRangesChange(t *testing.T) {
	families(t, func(l *live) {
		ranges := func(r string) string {
			return webWith("  load-balancer-ip BALANCER\n"+r+"  port statsd udp 8125\n", "ONE-SILENT")
		}
		l.become(ranges(""), "")
		l.standBy()
		c, in := l.dial(l.Outside, l.at("BALANCER", 8125)), l.dial(l.client, l.at("CLUSTER", 8125))
		c.wantHeard("one")
		in.wantHeard("one")
		l.become(ranges("  source-range ELSEWHERE\n"), "source not in the ranges: 1")
		c.send()
		in.wantHeard("one") // and not c
		c.wantNoEntry()
		l.become(ranges("  source-range OUTSIDE/BITS\n"), "")
		c.wantHeard("one")
	})
}

// A new traffic policy forbids the endpoint of a client that has had no answer yet.
func TestTrafficPolicyChange(t *testing.T) {
	families(t, func(l *live) {
		policy := func(lines string, endpoints ...string) string {
			return webWith("  external-ip EXTERNAL\n"+lines+"  port statsd udp 8125\n", endpoints...)
		}
		l.become(policy("", "REMOTE-SILENT"), "")
		l.standBy()
		outsider, pod := l.dial(l.Outside, l.at("EXTERNAL", 8125)), l.dial(l.client, l.at("EXTERNAL", 8125))
		internal := l.dial(l.client, l.at("CLUSTER", 8125))
		for _, c := range []*conn{outsider, pod, internal} {
			c.wantHeard("remote")
		}
		l.become(policy("", "REMOTE-SILENT", "ONE-SILENT"), "")
		for _, c := range []*conn{outsider, pod, internal} {
			c.wantHeard("remote")
		}
		l.become(policy("  external-policy Local\n", "REMOTE-SILENT", "ONE-SILENT"), "traffic policy: 1")
		outsider.wantHeard("one")
		pod.wantHeard("remote")
		internal.wantHeard("remote")
		l.become(policy("  internal-policy Local\n  external-policy Local\n", "REMOTE-SILENT", "ONE-SILENT"),
			"traffic policy: 1")
		outsider.wantHeard("one")
		pod.wantHeard("remote")
		internal.wantHeard("one")
	})
}
