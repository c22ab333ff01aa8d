package flowcost

import (
	"testing"
	"time"
)

// TestEvents shows why the rules of a proxy leave events alone: `ct event set` takes events from others that listen. A
// second listener changes nothing for the first one.
func TestEvents(t *testing.T) {
	s := newSite(t)
	other := s.listen("events 0 " + allGroups)
	defer other.stop()
	s.load("", "", "")
	s.open(s.connections[:100])
	for _, step := range []struct {
		name, rule, listener string
		created, updated     int64
	}{
		{name: "no rule", created: 100, updated: 500},
		{name: "beside another listener", listener: "events 16 " + newDestroy, created: 100, updated: 500},
		{name: "after its end", created: 100, updated: 500},
		{"new, reply, destroy", "ct event set new,reply,destroy", "", 100, 100},
		{"destroy", "ct event set destroy", "", 0, 0},
		{name: "no rule again", created: 100, updated: 500},
	} {
		s.load("", step.rule, "")
		var second *listener
		if step.listener != "" {
			second = s.listen(step.listener)
		}
		before := other.report()
		s.open(s.connections[:100]) // each replaces an entry of the same addresses, which ends by that
		var r report
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			r = other.report()
			r.New, r.Update, r.Destroy = r.New-before.New, r.Update-before.Update, r.Destroy-before.Destroy
			if r.New == step.created && r.Update == step.updated && r.Destroy == 100 {
				break
			}
		}
		if second != nil {
			second.stop()
		}
		if r.New != step.created || r.Update != step.updated || r.Destroy != 100 {
			t.Errorf("%s: the other listener got %+v: want %+v", step.name, r, step)
		}
	}
}
