package flowcost

import (
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// TestEvents logs what others that listen to events see of 100 connections, beside each way.
func TestEvents(t *testing.T) {
	s := newSite(t)
	testnet.Require(t, s.node.Sysctl("net.netfilter.nf_conntrack_timestamp", "1"))
	see := func(name, rule string, l *listener) report {
		t.Helper()
		s.load("", rule, "")
		before := l.report()
		s.open(s.connections[:100]) // the end of those before, and the start of these
		time.Sleep(200 * time.Millisecond)
		r := l.report()
		r.New, r.Update, r.Destroy = r.New-before.New, r.Update-before.Update, r.Destroy-before.Destroy
		t.Logf("%-50s %+v", name, r)
		return r
	}
	for _, mode := range []string{"default", "0", "1"} {
		if mode != "default" {
			s.sysctl("nf_conntrack_events", mode)
		}
		testnet.Require(t, s.node.FlushConntrack())
		s.load("", "", "")
		s.open(s.connections[:100])
		other := s.listen("events 0 " + allGroups)
		see(mode+": of connections before it listened", "", other)
		see(mode+": alone", "", other)
		see(mode+": alone, again", "", other)
		see(mode+": ct event set new,reply,destroy", "ct status dnat ct event set new,reply,destroy", other)
		see(mode+": after it", "", other)
		see(mode+": ct event set destroy", "ct status dnat ct event set destroy", other)
		see(mode+": after it", "", other)
		see(mode+": ct label set 5", "ct status dnat ct label set 5", other)
		see(mode+": after it", "", other)
		ours := s.listen("events 16 " + allGroups)
		see(mode+": beside another listener", "", other)
		t.Logf("the other one: %+v", ours.report())
		ours.stop()
		see(mode+": after the other's end", "", other)
		other.stop()
		s.open(s.connections[:100])
		other = s.listen("events 0 1") // of new ones only
		ours = s.listen("events 16 3")
		see(mode+": new only", "", other)
		ours.stop()
		see(mode+": new only, after the end of a listener of destroy", "", other)
		see(mode+": new only, after the end of a listener of destroy", "", other)
		other.stop()
	}
}
