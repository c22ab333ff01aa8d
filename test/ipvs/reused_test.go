package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// TestReusedPort shows the connections that a move from IPVS mode can lose, as docs/migrate.md says: those from an
// address and port that a connection of IPVS had shortly before. When IPVS forgets the former connection it also
// removes the entry of connection tracking with the same client and the same address and port of the Service, whoever
// made it (ip_vs_conn_drop_conntrack in net/netfilter/ipvs/ip_vs_nfct.c). The next packet is then translated anew,
// perhaps to another endpoint, which resets the connection. Connections from other ports lose nothing.
func TestReusedPort(t *testing.T) {
	const each, first = 16, 31000 // ports of each family: no number twice, since a socket of IPv6 takes a port of both
	w := newWorld(t)
	w.startKubeProxy("ipvs")
	w.hasChains()
	w.serves("kube-proxy", w.ways())
	must(t, w.Outside.Sysctl("net.ipv4.tcp_max_tw_buckets", "0")) // the client's own kernel gives a port back at once
	var reused, fresh []*client
	var from []netip.AddrPort
	for family, a := range w.NodeAddrs {
		y := way{from: w.Outside, protocol: testnet.TCP, to: netip.AddrPortFrom(a, w.web.nodePort)}
		for i := range each {
			source := netip.AddrPortFrom(w.freshSource(y).Addr(), uint16(first+family*each+i))
			before := w.ipvsConnections()
			if a, err := y.from.AskFrom(w.Context(), y.protocol, source, y.to, limit); err != nil ||
				a.Outcome != testnet.Answered {
				t.Fatalf("%s from %v: %v %v", y, source, a.Outcome, err)
			}
			if w.ipvsConnections() == before {
				t.Fatalf("%s from %v is no connection of IPVS", y, source)
			}
			from = append(from, source)
			reused, fresh = append(reused, &client{way: y}), append(fresh, &client{way: y})
		}
	}
	w.nftproxy = w.startNftproxy()
	w.run("nftproxy", "proxies", "--await=nftproxy", "--timeout="+limit.String())
	must(t, w.kubeProxy.Kill())
	<-w.kubeProxy.Exited()
	before := w.ipvsConnections()
	for i := range reused {
		must(t, reused[i].open(reused[i].from.DialFrom(t.Context(), testnet.TCP, from[i].String(), reused[i].to.String())))
		must(t, fresh[i].open(w.dial(fresh[i].way)))
		t.Cleanup(func() { _ = reused[i].conn.Close(); _ = fresh[i].conn.Close() })
	}
	if now := w.ipvsConnections(); now != before {
		t.Fatalf("%d connections are of IPVS", now-before)
	}
	for i := range reused {
		must(t, reused[i].use(limit))
		must(t, fresh[i].use(limit))
	}
	t.Logf("clean-up:\n%s", w.run("nftproxy", "cleanup", "--kube-proxy", "--end-connections"))
	lost := 0
	for i := range reused {
		if err := fresh[i].use(limit); err != nil {
			t.Errorf("%s from %v: %v", fresh[i].way, fresh[i].conn.LocalAddr(), err)
		}
		if err := reused[i].use(30 * time.Second); err != nil {
			t.Logf("%s from %v: %v", reused[i].way, from[i], err)
			lost++
		}
	}
	t.Logf("from ports that connections of IPVS had: %d of %d lost", lost, len(reused))
	if lost == 0 {
		t.Error("docs/migrate.md says that the kernel loses connections from reused ports, and it lost none")
	}
}
