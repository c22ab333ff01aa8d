// Package statuspagetest promises a status page about a small made-up cluster, for tests:
// with a Service in each state, and syncs with each outcome.
//
// It makes no assertion. The tests of the page's HTML and those in a browser share it.
package statuspagetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/health"
	"nftproxy/daemon/proxy"
	"nftproxy/daemon/statuspage"
	"nftproxy/look/explain"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// New makes a page on node-1 that is ready, before its first sync.
func New(change ...func(*statuspage.Config)) *statuspage.Page {
	now := time.Now()
	c := statuspage.Config{
		Version: "v1.2.3", Node: "node-1", Table: "nftproxy", Started: now.Add(-3 * time.Hour),
		Ready:    func() (bool, string) { return true, "ok" },
		Problems: func(service.Name) []string { return nil },
		Connections: func(_ context.Context, s service.Snapshot) (*inspect.Connections, error) {
			return Connections(s), nil
		},
		Explain: func(context.Context, explain.Origin, explain.Destination, *service.Snapshot) (explain.Explanation, error) {
			return Explanation(), nil
		},
		Status: func() health.Status {
			return health.Status{Healthy: true, Status: map[string]health.FamilyStatus{"IPv4": {LastUpdated: now, Healthy: true},
				"IPv6": {LastUpdated: now, Healthy: true}}}
		},
	}
	for _, f := range change {
		f(&c)
	}
	return statuspage.New(c)
}

// Addrs parses addresses.
func Addrs(list ...string) (parsed []netip.Addr) {
	for _, a := range list {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	return parsed
}

// Endpoint has an address and port. The words of flags are its conditions (ready, serving,
// terminating), and "here" if it is on node-1 and not on node-2.
func Endpoint(at, flags string) service.Endpoint {
	e := service.Endpoint{Addr: netip.MustParseAddrPort(at), Node: "node-2"}
	for flag := range strings.FieldsSeq(flags) {
		switch flag {
		case "ready":
			e.Ready, e.Serving = true, true
		case "serving":
			e.Serving = true
		case "terminating":
			e.Terminating = true
		case "here":
			e.Node = "node-1"
		}
	}
	return e
}

// Port is a TCP port. Its node port may be 0.
func Port(name string, number, node uint16, endpoints ...service.Endpoint) service.Port {
	return service.Port{Name: name, Protocol: service.TCP, Port: number, NodePort: node,
		Endpoints: service.MergeEndpoints(endpoints)}
}

// Node is node-1.
func Node() service.Node {
	return service.Node{Name: "node-1", Zone: "zone-a", Addresses: Addrs("192.168.0.1", "2001:db8::1")}
}

// Cluster has a Service of each state.
func Cluster() *snapshots.Builder {
	b := snapshots.NewBuilder(Node())
	b.SetMaxAffinityPorts(1)
	ready := Endpoint("10.244.0.1:8080", "ready here")
	for _, s := range []service.Service{
		{Name: "a/serving", ClusterIPs: Addrs("10.96.0.1"),
			Ports: []service.Port{Port("http", 80, 0, ready, Endpoint("10.244.1.9:8080", "serving terminating"))}},
		{Name: "b/none-here", ClusterIPs: Addrs("10.96.0.2"), ExternalPolicy: service.Local,
			LoadBalancerIPs: Addrs("203.0.113.9"),
			Sources:         service.NewSources([]netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}),
			Ports:           []service.Port{Port("", 443, 30443, Endpoint("10.244.1.2:8443", "ready"))}},
		{Name: "c/draining", ClusterIPs: Addrs("10.96.0.3"),
			Ports: []service.Port{Port("", 80, 0, Endpoint("10.244.0.3:80", "serving terminating here"))}},
		{Name: "d/no-affinity", ClusterIPs: Addrs("10.96.0.4"), AffinityTimeout: time.Hour,
			Ports: []service.Port{Port("http", 80, 0, ready), Port("https", 443, 0, ready)}},
		{Name: "e/first", ClusterIPs: Addrs("10.96.0.5"), ExternalIPs: Addrs("203.0.113.5"), Created: time.Unix(1e9, 0),
			Ports: []service.Port{Port("", 80, 0, ready)}},
		{Name: "e/second", ClusterIPs: Addrs("10.96.0.6"), ExternalIPs: Addrs("203.0.113.5"), Created: time.Unix(1.1e9, 0),
			Ports: []service.Port{Port("", 80, 0, ready)}},
		{Name: "f/empty", ClusterIPs: Addrs("10.96.0.7", "fd00::7"),
			Ports: []service.Port{Port("", 80, 0, Endpoint("10.244.0.7:80", "ready")), Port("dns", 53, 0)}},
		{Name: "z/refused", ClusterIPs: Addrs("10.96.0.8"), Ports: []service.Port{Port("", 80, 0, ready)}},
	} {
		b.Set(&s)
	}
	return b
}

// Many adds so many further Services to a cluster. One in ten has no endpoint.
func Many(b *snapshots.Builder, services int) {
	b.Expect(services)
	for i := range services {
		at := netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)})
		e := service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080),
			Node: "node-1", Ready: i%10 != 0, Serving: true}
		b.Set(&service.Service{
			Name: service.Name(fmt.Sprintf("ns-%d/svc-%d", i%100, i)), ClusterIPs: []netip.Addr{at},
			Ports: []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints([]service.Endpoint{e})}},
		})
	}
}

// SyncOf is a sync of that snapshot. If it has the Service z/refused, that one is in
// quarantine, and a part that is no Service is, too.
func SyncOf(s service.Snapshot) proxy.Sync {
	now := time.Now()
	sync := proxy.Sync{
		Snapshot: s, Since: now.Add(-5 * time.Millisecond), Start: now.Add(-4 * time.Millisecond),
		Compile: time.Millisecond, Plan: time.Millisecond, Apply: 2 * time.Millisecond, Written: 7,
	}
	if _, found := s.Services.Get("z/refused"); found {
		sync.Quarantined = map[string]error{
			"z/refused": errors.New("add element: no space left on device"),
			"chains":    errors.New("add chain: out of memory"),
		}
	}
	return sync
}

// Syncs are syncs of that snapshot over the last minutes: quick and slow ones, a failed one,
// a repair, one that had nothing to write, and a good one at the end.
func Syncs(s service.Snapshot) []proxy.Sync {
	var list []proxy.Sync
	now := time.Now()
	for i := range 60 {
		sync := SyncOf(s)
		sync.Start = now.Add(time.Duration(i-60) * 3 * time.Second)
		sync.Apply = time.Duration(1+i*i%17) * time.Millisecond
		sync.Since = sync.Start.Add(-time.Duration(i*7%23) * 100 * time.Microsecond)
		switch i {
		case 20:
			sync.Err = errors.New("commit: device or resource busy")
			sync.Apply = 900 * time.Millisecond
		case 35:
			sync.Check = true
		case 45, 46:
			sync.Since, sync.Written = time.Time{}, 0
		}
		list = append(list, sync)
	}
	return list
}

// Connections are some to a Cluster: to endpoints that get new connections, to one that
// terminates, and to one that has gone.
func Connections(s service.Snapshot) *inspect.Connections {
	index := conntrack.NewIndex(conntrack.Options{})
	index.Update(s)
	connections := inspect.NewConnections(index)
	for i, leads := range [][2]string{
		{"10.96.0.1:80", "10.244.0.1:8080"},
		{"10.96.0.1:80", "10.244.1.9:8080"}, {"10.96.0.1:80", "10.244.1.9:8080"}, // terminates
		{"10.96.0.5:80", "10.244.9.9:80"}, {"203.0.113.5:80", "10.244.9.9:80"}, {"10.96.0.5:80", "10.244.9.9:80"}, // has gone
		{"10.96.0.3:80", "10.244.0.3:80"}, // terminates, but is the only one
	} {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 7, 7}), uint16(10000+i))
		connections.Add(conntrack.Flow{
			Protocol: service.TCP, Status: conntrack.DstNAT, TCPState: conntrack.TCPEstablished,
			Original: conntrack.Tuple{Src: from, Dst: netip.MustParseAddrPort(leads[0])},
			Reply:    conntrack.Tuple{Src: netip.MustParseAddrPort(leads[1]), Dst: from},
		})
	}
	return connections
}

// Explanation has something in each of its parts.
func Explanation() explain.Explanation {
	return explain.Explanation{
		Packet:  explain.Packet{Protocol: "tcp", Source: "192.168.0.1", From: "node", Destination: "10.96.0.7:80/tcp"},
		Outcome: explain.Endpoint, Summary: "one of <2> endpoints", Service: "a/serving", Port: "http",
		Endpoints: []explain.Target{
			{Address: "10.244.0.1:8080", Chance: 0.5, Masqueraded: true, MasqueradedBy: "by a rule", Way: "by eth0",
				About: "ready"},
			{Address: "10.244.1.9:8080", Chance: 0.5},
		},
		Affinity: &explain.Affinity{Endpoint: "10.244.0.1:8080", ExpiresSeconds: 60},
		Steps: []explain.Step{{Chain: "prerouting", Number: 2, Says: "goes to the chain", Rule: "jump somewhere",
			Elements: []string{"10.96.0.7 . tcp . 80"}}},
		Otherwise: []explain.Branch{{Chance: 0.125, Steps: []explain.Step{{Chain: "endpoints-2", Number: 3, Says: "drops"}}}},
		Causes:    []string{"a cause"}, Remedies: []string{"a remedy"}, Others: []explain.Other{{Says: "a firewall"}},
		Notes: []string{"a note"}, Assumed: []string{"assumed"},
	}
}
