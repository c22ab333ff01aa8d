package share_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/model/ip"
	"nftproxy/model/share"
	"nftproxy/test/gen"
)

// TestChooseAsKubeProxy holds the cases of kube-proxy's TestCategorizeEndpoints
// (v1.37.2, the gate PreferSameTrafficDistribution on, as it is locked) and
// some beside them. The node is node-0; of an endpoint 10.0.0.N only N and what
// follows its port are given. Lists are given by N, "-" for one that no chain
// would use. The reachable ones that are on the node are those of either list.
func TestChooseAsKubeProxy(t *testing.T) {
	const zones = "1 node-1 ready for-zones=a; 2 node-1 ready for-zones=b; 3 node-1 ready for-zones=c; 4 node-1 ready " +
		"for-zones=a"
	const localZones = "1 node-0 ready for-zones=a; 2 node-0 ready for-zones=b; 3 node-1 ready for-zones=c; 4 node-1 " +
		"ready for-zones=a"
	const nodes = "1 - ready for-nodes=node-0 for-zones=a; 2 - ready for-nodes=node-1 for-zones=b; 3 - ready " +
		"for-nodes=node-2 for-zones=c; 4 - ready for-nodes=node-3 for-zones=a"
	const oneHere = "1 node-0 ready; 2 node-1 ready"
	const away = "1 node-1 ready; 2 node-2 ready"
	const leavingAway = "1 node-1 serving terminating; 2 node-2 serving terminating"
	const internal, external, port = "internal-policy Local\n", "external-policy Local\n", "node-port"
	for _, test := range []struct {
		name, zone, policies, endpoints string
		cluster, local, here            string
		nowhere                         bool
	}{
		{name: "hints for all, some for the zone", zone: "a", endpoints: zones, cluster: "1 4"},
		{name: "external Local: no topology for local ones", zone: "a", policies: external + port, endpoints: localZones,
			cluster: "1 4", local: "1 2", here: "1 2"},
		{name: "internal Local: no topology for local ones", zone: "a", policies: internal + port, endpoints: localZones,
			cluster: "1 4", local: "1 2", here: "1 2"},
		{name: "the node has no zone", endpoints: "1 node-1 ready for-zones=a", cluster: "1"},
		{name: "no hint for the node's zone", zone: "b", endpoints: "1 node-1 ready for-zones=a", cluster: "1"},
		{name: "one in the zone is not ready", zone: "a", endpoints: strings.Replace(zones, "4 node-1 ready", "4 node-1", 1),
			cluster: "1"},
		{name: "those in the zone are not ready", zone: "a", endpoints: strings.ReplaceAll(strings.ReplaceAll(zones,
			"1 node-1 ready", "1 node-1"), "4 node-1 ready", "4 node-1"), cluster: "2 3"},
		{name: "one ready endpoint without hint", zone: "a", endpoints: strings.Replace(zones, " for-zones=c", "", 1),
			cluster: "1 2 3 4"},
		{name: "one without hint that is not ready", zone: "a", endpoints: zones + "; 5 node-1; 6 node-1 serving terminating",
			cluster: "1 4"},
		{name: "several hints", zone: "c", endpoints: "1 - ready for-zones=a,b,c; 2 - ready for-zones=b,c; 3 - ready " +
			"for-zones=b,d; 4 - ready for-zones=c", cluster: "1 2 4"},
		{name: "a hint for the node counts more than one for its zone", zone: "a", endpoints: nodes, cluster: "1"},
		{name: "one ready endpoint without any hint", zone: "a", endpoints: strings.Replace(nodes,
			" for-nodes=node-1 for-zones=b", "", 1), cluster: "1 2 3 4"},
		{name: "one without a hint for nodes: zones count", zone: "a", endpoints: strings.Replace(nodes, " for-nodes=node-1",
			"", 1), cluster: "1 4"},
		{name: "no hint for the node: zones count", zone: "a", endpoints: strings.Replace(nodes, "node-0", "node-9", 1),
			cluster: "1 4"},
		{name: "no hint for the node, none for the zone", zone: "z", endpoints: strings.Replace(nodes, "node-0", "node-9", 1),
			cluster: "1 2 3 4"},
		{name: "topology and being local go apart", zone: "a", policies: external + port,
			endpoints: "1 node-0 ready for-zones=a; 2 node-0 ready for-zones=b; 3 node-1 ready for-zones=a; 4 node-1 ready " +
				"for-zones=b",
			cluster: "1 3", local: "1 2", here: "1 2"},
		{name: "hints are not looked at when all terminate", zone: "a", endpoints: "1 - serving terminating for-zones=a; 2 " +
			"- serving terminating for-zones=b", cluster: "1 2"},

		{name: "internal Local: nothing there", policies: internal, nowhere: true},
		{name: "internal Local: all elsewhere", policies: internal, endpoints: away},
		{name: "internal Local: all here", policies: internal, endpoints: "1 node-0 ready; 2 node-0 ready", local: "1 2",
			here: "1 2"},
		{name: "internal Local: some here", policies: internal, endpoints: oneHere, local: "1", here: "1"},
		{name: "none is ready", endpoints: "1 -; 2 -", nowhere: true},
		{name: "some are ready", endpoints: "1 -; 2 - ready", cluster: "2"},
		{name: "all terminate", endpoints: "1 node-0 serving terminating; 2 node-1 serving terminating", cluster: "1 2",
			here: "1"},
		{name: "ready while terminating is ready (publishNotReadyAddresses)", endpoints: "1 - ready serving terminating; 2 " +
			"- ready; 3 - serving terminating", cluster: "1 2"},
		{name: "internal Local, external Cluster", policies: internal + port, endpoints: oneHere, cluster: "1 2", local: "1",
			here: "1"},
		{name: "internal Cluster, external Local", policies: external + port, endpoints: oneHere, cluster: "1 2", local: "1",
			here: "1"},
		{name: "both Local", policies: internal + external + port, endpoints: oneHere, cluster: "1 2", local: "1", here: "1"},
		{name: "both Local, all elsewhere", policies: internal + external + port, endpoints: away, cluster: "1 2"},
		{name: "both Local, all elsewhere and terminating", policies: internal + external + port, endpoints: leavingAway,
			cluster: "1 2"},
		{name: "external Local, with terminating ones", policies: external + port,
			endpoints: "1 node-1 ready; 2 node-0; 3 node-0 serving terminating; 4 node-1 serving terminating",
			cluster:   "1", local: "3", here: "3"},
		{name: "external Local without anything external", policies: external, endpoints: oneHere, cluster: "1 2", here: "1"},
		{name: "internal Local needs no cluster list", policies: internal, endpoints: "1 node-1 ready; 2 node-0 ready",
			local: "2", here: "2"},
		{name: "no endpoint", nowhere: true},
		{name: "neither ready nor serving nor terminating", zone: "a", endpoints: "1 -", nowhere: true},
		{name: "terminating, not serving", policies: internal, endpoints: "1 node-0 terminating", nowhere: true},
		{name: "serving only", policies: external + port, endpoints: "1 node-0 serving", nowhere: true},

		{name: "what is external in the other family is none here", policies: external +
			"external-ip 2001:db8::1\nload-balancer-ip 2001:db8::2\n", endpoints: oneHere, cluster: "1 2", here: "1"},
		{name: "an external IP is", policies: external + "external-ip 198.51.100.1\n", endpoints: oneHere, cluster: "1 2",
			local: "1", here: "1"},
		{name: "a load balancer's address is", policies: internal + "load-balancer-ip 198.51.100.1\n", endpoints: oneHere,
			cluster: "1 2", local: "1", here: "1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := "node node-0\nservice default/web created 2026-01-01T00:00:00Z\ncluster-ip 10.96.0.1\ncluster-ip " +
				"fd00:96::1\n"
			if test.zone != "" {
				text = "zone " + test.zone + "\n" + text
			}
			policies, nodePort := strings.CutSuffix(test.policies, port)
			text += policies + "port - tcp 80"
			if nodePort {
				text += " node-port 30080"
			}
			for e := range strings.SplitSeq(test.endpoints, "; ") {
				if n, rest, ok := strings.Cut(e, " "); ok {
					text += fmt.Sprintf("\nendpoint 10.0.0.%s:80 %s", n, rest)
				}
			}
			snapshot, err := gen.ReadSnapshot(strings.NewReader(text))
			if err != nil {
				t.Fatalf("%v, of:\n%s", err, text)
			}
			s := snapshot.Services.At("default/web")
			p := &s.Ports[0]
			want := choice{numbered(test.cluster), numbered(test.local), !test.nowhere}
			got := share.Choose(s, p, snapshot.Node, ip.V4)
			if diff := gocmp.Diff(want, choiceOf(got), byChoice, byValue); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			var here []netip.Addr
			for _, a := range numbered(test.here) {
				here = append(here, a.Addr())
			}
			if diff := gocmp.Diff(here, onNode(got), byValue); diff != "" {
				t.Errorf("on the node (-want +got):\n%s", diff)
			}
		})
	}
}

// numbered are the addresses of the numbers in a list.
func numbered(list string) []netip.AddrPort {
	var addrs []netip.AddrPort
	for _, n := range strings.Fields(list) {
		addrs = append(addrs, netip.MustParseAddrPort("10.0.0."+n+":80"))
	}
	return addrs
}
