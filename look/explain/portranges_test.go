package explain_test

import (
	"strings"
	"testing"

	"nftproxy/look/explain"
)

// TestRangesNotServed: by the objects, the causes name Services that ask for ranges with the port, and why they lack
// them.
func TestRangesNotServed(t *testing.T) {
	w := worldOf(t, cluster+`service other/grab created 2026-01-02T00:00:00Z
  cluster-ip 10.96.0.14
  external-ip 10.244.1.6
  external-ip 10.96.0.2
  external-ip 198.51.100.21
  option port-ranges 9000-9100/TCP
  port http tcp 80
  port - tcp ranges=9000-9100
    endpoint 10.244.0.9:0 node-1 ready serving
service other/late created 2026-01-03T00:00:00Z
  cluster-ip 10.96.0.15
  external-ip 198.51.100.21
  option port-ranges 9000-9200/TCP
  port http tcp 80
  port - tcp ranges=9000-9200
`)
	w.facts.Objects, w.facts.Source = &w.snapshot, "the objects"
	pod := "veth0 10.244.0.8:1000 -> "
	w.says(pod+"10.244.1.6:9000/tcp", explain.Untouched,
		"Service other/grab asks for any port range of 10.244.1.6/tcp and does not get it: it is protected (an endpoint of "+
			"Service ns/draining has the address)")
	w.says(pod+"10.96.0.2:9000/tcp", explain.Refused, "Service other/grab asks for any port range of 10.96.0.2/tcp and "+
		"does not get it: it is protected (the cluster IP of Service ns/hinted)")
	w.says(pod+"198.51.100.21:9000/tcp", explain.Endpoint, "Service other/late asks for any port range of "+
		"198.51.100.21/tcp and does not get it: it belongs to Service other/grab, since it is older")
	for _, packet := range []string{"10.244.1.6:9101/tcp", "10.244.1.6:9000/udp"} {
		if e := w.ask(pod + packet); strings.Contains(e.Text(true), "asks for") {
			t.Errorf("%s: %s", packet, e.Text(true))
		}
	}
}
