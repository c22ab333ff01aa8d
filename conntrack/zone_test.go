package conntrack

import (
	"strings"
	"testing"

	"nftproxy/model/service"
)

// A rule of the administrator puts packets into a zone of connection tracking: both directions, or
// one. Our rules translate them all the same, and a flow does not stay with an endpoint that has gone.
// What passes in a zone without a translation stays.
func TestZones(t *testing.T) {
	for name, rule := range map[string]string{
		"both directions": "ct zone set 5", "original direction": "ct original zone set 5",
		"reply direction":  "ct reply zone set 5",
		"each pod its own": "ct original zone set FAMILY saddr map { CLIENT : 7, OUTSIDE : 8 }",
	} {
		t.Run(name, func(t *testing.T) {
			families(t, func(l *live) {
				l.become(web("ONE-POD"), "")
				client := l.addr(l.Pod("client").Addrs).String()
				rule := l.addrs.Replace(strings.ReplaceAll(rule, "CLIENT", client))
				loadRules(l, l.Node, l.addrs.Replace("table FAMILY zones {\n\tchain prerouting {\n\t\ttype filter hook "+
					"prerouting priority -300;\n\t\t")+rule+"\n\t}\n}\n")
				conns := []*conn{l.dial(l.client, l.at("CLUSTER", 53)), l.dial(l.Outside, l.at("NODE", 30053))}
				passing := l.dial(l.client, l.at("SECOND", 53)) // to no Service, and nobody answers
				for _, c := range conns {
					c.wantAnswer("one")
					f, found := c.entry()
					if !found || f.Zone == 0 || f.OnlyReply != (name == "reply direction") || f.Status&DstNAT == 0 {
						l.Fatalf("entry %v in zone %d, only reply %t: it proves nothing", f, f.Zone, f.OnlyReply)
					}
				}
				passing.send()
				l.become(web("ONE-POD", "TWO-POD"), "")
				l.become(web("TWO-POD"), "endpoint gone: 2") // filtered dumps
				for _, c := range conns {
					c.wantAnswer("two")
				}
				l.become(web("TWO-POD terminating", "ONE-POD"), "endpoint gone: 2")
				for _, c := range conns {
					c.wantAnswer("one")
				}
				l.cleaner.SyncDone(l.write(web("TWO-POD")), true) // a dump of everything
				l.updates++
				l.wantRemoved("endpoint gone: 2")
				for _, c := range conns {
					c.wantAnswer("two")
				}
				l.become(bystander+"service default/late created 2026-01-01T00:00:00Z\n  external-ip SECOND\n  port dns udp 53\n "+
					"   endpoint ONE-POD node ready serving\n", "service gone: 2")
			})
		})
	}
}

// Entries with one original tuple in several zones are different entries.
func TestZonesWithOneTuple(t *testing.T) {
	x := NewIndex(Options{})
	x.Update(parse(t, formerly(dnatedCluster)))
	x.Update(parse(t, dnatedCluster))
	for zone := range uint16(3) {
		for endpoint, want := range map[string]Reason{"10.0.0.1:53": "", "10.0.0.99:53": EndpointGone, "172.17.0.2:53": ""} {
			f := dnated(service.UDP, "10.0.0.77", "10.96.0.1:53", endpoint, SeenReply)
			f.Zone = zone
			if got, _ := x.Stale(f); got != want {
				t.Errorf("zone %d, %s: %q, want %q", zone, endpoint, got, want)
			}
		}
	}
}
