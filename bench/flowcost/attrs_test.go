package flowcost

import (
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

func TestAttributes(t *testing.T) {
	s := newSite(t)
	for _, mode := range []string{"0", "1"} {
		testnet.Require(t, s.node.Sysctl("net.netfilter.nf_conntrack_timestamp", mode))
		testnet.Require(t, s.node.FlushConntrack())
		l := s.listen("events 0 " + allGroups)
		s.load("", "ct status dnat ct label set 5 ", "")
		s.open(s.connections[:100])
		s.open(s.connections[:100])
		time.Sleep(200 * time.Millisecond)
		r := l.report()
		for i, a := range r.Attributes {
			var list []int
			for b := range 64 {
				if a>>b&1 == 1 {
					list = append(list, b)
				}
			}
			t.Log("timestamp", mode, []string{"new", "update", "destroy"}[i], list)
		}
		l.stop()
	}
	// A rule without a listener: do entries get the extension, whose destroy event a later listener gets?
	testnet.Require(t, s.node.FlushConntrack())
	s.load("", "ct status dnat ct event set destroy", "")
	s.open(s.connections[:100])
	l := s.listen("events 0 " + allGroups)
	s.load("", "", "")
	s.open(s.connections[:100])
	time.Sleep(200 * time.Millisecond)
	t.Logf("destroy events of entries with ct event set that were there before the listener: %+v", l.report())
	l.stop()
}
