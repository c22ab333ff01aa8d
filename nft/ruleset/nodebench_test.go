package ruleset_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// BenchmarkNodeConnect has a process of the node connect to an endpoint on the node: straight, without any Service,
// and to the cluster IP of one of 10,000 Services with 10 endpoints each, with all ways to do the masquerade, with
// none of it, and where that Service has ranges of ports: to its port, and to a port of the ranges, and where it has
// time-outs of its own. A pod does the same. All take turns of 100 connections. It reports the median of what a turn's
// median is to that of the same client's straight turn in the same round (x), and the median of the medians (us).
func BenchmarkNodeConnect(b *testing.B) {
	const connections = 100
	cmd := netfilter.NFTForTest(b)
	node := func(rules string) string {
		return "flush chain ip " + ruleset.DefaultTable + " postrouting\nadd rule ip " + ruleset.DefaultTable +
			" postrouting " + rules + "\n"
	}
	var ways []*nodeWay
	for _, w := range []struct{ name, change string }{
		{"straight", ""},
		{"as-it-is", ""},
		{"kept-port", node("ct label 110 masquerade")},
		{"random", node("ct label 110 masquerade random")},
		{"snat", node("ct label 110 snat to 192.168.100.1 fully-random")},
		{"own-port-kept-fib", node("ct label 110 fib saddr type local masquerade\nadd rule ip " + ruleset.DefaultTable +
			" postrouting ct label 110 masquerade fully-random")},
		{"own-port-kept-iif", node("ct label 110 meta iif 0 masquerade\nadd rule ip " + ruleset.DefaultTable +
			" postrouting ct label 110 masquerade fully-random")},
		{"own-source-kept-fib", node("ct label 110 fib saddr . oif type != local masquerade fully-random")},
		{"kept-source", node("ct label 110 accept")},
		{"static", ""},
		{"beside-ranges", ""},
		{"in-ranges", ""},
		{"time-outs", ""},
	} {
		ways = append(ways, newNodeWay(b, cmd, w.name, w.change))
	}
	clients := []string{"node", "pod"}
	ratios, medians := map[string][]float64{}, map[string][]float64{}
	b.ResetTimer()
	for i := range b.N {
		for _, client := range clients {
			round := map[string]float64{}
			for k := range ways {
				w := ways[(i/2+k)%len(ways)]
				if i%2 == 1 {
					w = ways[(i/2+len(ways)-k)%len(ways)]
				}
				must(b, w.topology.Node.FlushConntrack())
				round[w.name] = w.turn(b, client, connections)
			}
			for name, took := range round {
				ratios[client+"-"+name] = append(ratios[client+"-"+name], took/round["straight"])
				medians[client+"-"+name] = append(medians[client+"-"+name], took)
			}
		}
	}
	b.StopTimer()
	for name := range ratios {
		b.ReportMetric(median(ratios[name]), "x/"+name)
		b.ReportMetric(median(medians[name]), "us/"+name)
	}
}

// nodeWay is a node with one kind of rules.
type nodeWay struct {
	name     string
	topology *testnet.Topology
	pod      *testnet.Pod
	server   int
	to       netip.AddrPort
}

// newNodeWay makes a node whose program has a change, or that has no program and only tracks connections.
func newNodeWay(b *testing.B, cmd netfilter.NFT, name, change string) *nodeWay {
	b.Helper()
	w := &nodeWay{name: name, topology: testnet.NewForTest(b, testnet.Config{}),
		to: netip.MustParseAddrPort("10.244.0.100:8080")}
	var endpoints []netip.Addr
	var list []service.Endpoint
	for a := w.to.Addr(); len(list) < 10; a = a.Next() {
		endpoints = append(endpoints, a)
		list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(a, w.to.Port()), Node: "node", Ready: true,
			Serving: true})
	}
	var err error
	w.pod, err = w.topology.AddPod("client")
	must(b, err)
	server, err := w.topology.AddPod("server", endpoints...)
	must(b, err)
	must(b, server.NS.Sysctl("net.core.somaxconn", "65535"))
	must(b, server.NS.Do(func() (err error) {
		if w.server, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		if err = unix.Bind(w.server, &unix.SockaddrInet4{Port: int(w.to.Port())}); err != nil {
			return err
		}
		return unix.Listen(w.server, 65535)
	}))
	b.Cleanup(func() { unix.Close(w.server) })
	if name == "straight" {
		must(b, cmd.Load(w.topology.Node, "table ip t {\n chain f {\n type filter hook forward priority filter;\n ct state "+
			"invalid drop\n }\n}\n"))
		return w
	}
	if name == "static" {
		w.to = netip.MustParseAddrPort("10.96.0.10:80")
		must(b, cmd.Load(w.topology.Node, "table ip t {\n chain o {\n type nat hook output priority -100;\n ip daddr "+
			"10.96.0.10 tcp dport 80 dnat to 10.244.0.100:8080\n }\n chain p {\n type nat hook prerouting priority -100;\n ip "+
			"daddr 10.96.0.10 tcp dport 80 dnat to 10.244.0.100:8080\n }\n}\n"))
		return w
	}
	builder := snapshots.NewBuilder(gen.PlainNode())
	for i := range 9_999 {
		builder.Set(gen.UniformService(i, 10))
	}
	measured := gen.UniformService(9_999, 1)
	measured.Ports[0].Endpoints = service.MergeEndpoints(list)
	w.to = netip.AddrPortFrom(measured.ClusterIPs[0], measured.Ports[0].Port)
	if strings.HasSuffix(name, "ranges") {
		must(b, measured.Options.Set("port-ranges", "8000-9000/TCP"))
		measured.SetRangePorts()
	}
	if name == "time-outs" {
		must(b, measured.Options.Set(service.TCPTimeoutKey, "2h"))
	}
	if name == "in-ranges" {
		w.to = netip.AddrPortFrom(w.to.Addr(), 8080)
	}
	builder.Set(measured)
	c, err := kernel.Open(kernel.Config{NetNS: w.topology.Node.Fd()})
	must(b, err)
	settings := service.Settings{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	for _, t := range load(ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable, Settings: settings},
		builder.Snapshot())).Transactions() {
		must(b, c.Apply(t))
	}
	must(b, c.Close())
	if change != "" {
		must(b, cmd.Load(w.topology.Node, change))
	}
	return w
}

// turn makes n connections and returns the median of their times, in microseconds.
func (w *nodeWay) turn(b *testing.B, client string, n int) float64 {
	b.Helper()
	ns := w.pod.NS
	if client == "node" {
		ns = w.topology.Node
	}
	var took []float64
	must(b, ns.Do(func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
				return err
			}
			start := time.Now()
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(w.to.Port()), Addr: w.to.Addr().As4()}); err != nil {
				return fmt.Errorf("%s: connect from the %s: %w", w.name, client, err)
			}
			took = append(took, float64(time.Since(start).Nanoseconds())/1000)
			if err := unix.Close(fd); err != nil {
				return err
			}
		}
		return nil
	}))
	for {
		fd, _, err := unix.Accept4(w.server, unix.SOCK_CLOEXEC)
		if err != nil {
			break
		}
		unix.Close(fd)
	}
	return median(took)
}

func median(list []float64) float64 {
	list = slices.Clone(list)
	slices.Sort(list)
	return list[len(list)/2]
}
