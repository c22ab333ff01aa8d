package conntrack

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/test/lib/testnet"
)

// A node loses its network, and its endpoint becomes unready: it is listed for minutes. A client
// that has no answer from there yet, or that takes a source port again whose first packet had none,
// is served by another endpoint. An established connection keeps its entry.
func TestUnreadyEndpoint(t *testing.T) {
	for _, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			w := worlds(t)[family]
			lost, staying := w.endpoint(t, "lost"), w.endpoint(t, "staying")
			r, table := newRules(t, w.Node), open(t, w.Node)
			index := NewIndex(Options{Established: []service.Protocol{service.TCP}})
			follow := func(s service.Snapshot) {
				t.Helper()
				r.sync(t, s)
				index.Update(s)
			}
			follow(w.web(t, lost))
			established := w.connect(t, "lost")

			made := listen(t, w.Node)
			deaf(t, w.Pod("lost").NS)
			// The SYN of one client whose socket goes on, and that of one that has given up.
			connected := make(chan error, 1)
			to := netip.AddrPortFrom(w.clusterIP, 80)
			go func() {
				conn, err := w.pod.NS.DialFrom(t.Context(), "tcp", netip.AddrPortFrom(w.podAddr, 41001).String(), to.String())
				if err == nil {
					err = conn.Close()
				}
				connected <- err
			}()
			made.await(t, entry{service.TCP, w.tuple(41001, w.clusterIP, 80)})
			given := w.send(t, service.TCP, 41002, w.clusterIP, 80)
			made.await(t, given)

			unready := parse(t, fmt.Sprintf("node node\nservice default/web created 2026-01-01T00:00:00Z\n  cluster-ip %v\n  "+
				"port http tcp 80\n"+
				"    endpoint %v other\n    endpoint %v node ready serving\n", w.clusterIP, lost, staying))
			r.sync(t, unready)
			scope := index.Update(unready)
			if scope.Everything || len(scope.Filters) != 1 {
				t.Errorf("scope %+v, want one filter", scope)
			}
			pass := newPass(scope)
			if err := NewCleaner(table, index, CleanerConfig{}).clean(t.Context(), pass); err != nil {
				t.Fatal(err)
			}
			if n := pass.run.Removed[EndpointGone]; n != 2 || pass.run.Scanned > 3 {
				t.Errorf("removed %v of %d that were read, want both unanswered ones", pass.run.Removed, pass.run.Scanned)
			}
			select {
			case err := <-connected:
				if err != nil {
					t.Errorf("the client whose SYN had no answer: %v", err)
				}
			case <-time.After(patience):
				t.Error("the client whose SYN had no answer is not served")
			}
			from := established.LocalAddr().String()
			for e, status := range entries(flows(t, table, Filter{Protocol: service.TCP, Endpoint: lost})) {
				if e.original.Src.String() != from || status&Assured == 0 {
					t.Errorf("%v leads to the lost endpoint", e)
				}
			}
			if n := len(flows(t, table, Filter{Protocol: service.TCP, Endpoint: lost})); n != 1 {
				t.Errorf("%d entries to the lost endpoint, want the established one", n)
			}
		})
	}
}

// deaf makes a namespace drop all packets that it gets.
func deaf(t *testing.T, ns *testnet.Namespace) {
	t.Helper()
	loadRules(t, ns, "table inet deaf {\n\tchain input {\n\t\ttype filter hook input priority -400; policy "+
		"drop;\n\t}\n}\n")
}
