package slowstart_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/slowstart"
	"nftproxy/test/gen"
)

// TestTracker: endpoints that come beside others grow in two steps; the first snapshot, a Service whose endpoints are all new and
// one that asks for nothing do not wait; weights are parts of the endpoint's own.
func TestTracker(t *testing.T) {
	t0 := time.Unix(1_800_000_000, 0)
	cluster := func(web string, plain string) service.Snapshot {
		text := "node n1\n"
		for name, endpoints := range map[string]string{"web": web, "plain": plain} {
			text += "service default/" + name + " created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0." + map[string]string{"web": "1", "plain": "2"}[name] + "\n  port http tcp 80\n"
			for _, e := range strings.Fields(endpoints) {
				text += "    endpoint 10.0.0." + e + ":80 n1 ready serving\n"
			}
		}
		s, err := gen.ReadSnapshot(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	builder := service.NewBuilder(service.Node{Name: "n1"})
	var tracker slowstart.Tracker
	for i, step := range []struct {
		at         int // seconds
		web, plain string
		want       string
		next       int // seconds; 0 for never
	}{
		{0, "1", "1", "1=100", 0}, // nothing is new at the start
		{1, "1 2", "1 2", "1=100 2=25", 16},
		{4, "1 2", "1 2", "1=100 2=25", 16},
		{16, "1 2", "1 2", "1=100 2=50", 31},
		{18, "1 2 3", "1 2", "1=100 2=50 3=25", 31},
		{31, "1 2 3", "1 2", "1=100 2=100 3=25", 33},
		{34, "1 2 3", "1 2", "1=100 2=100 3=50", 48},
		{35, "3", "1 2", "3=100", 0}, // nobody is left that could take its share
		{36, "3 4", "1", "3=100 4=25", 51},
		{60, "3 4", "1", "3=100 4=50", 66},
		{66, "3 4", "1", "3=100 4=100", 0},
		{70, "5 6", "1", "5=100 6=100", 0}, // all are new
		{200, "5 6", "1", "5=100 6=100", 0},
	} {
		now := t0.Add(time.Duration(step.at) * time.Second)
		for _, s := range cluster(step.web, step.plain).Services.All() {
			if s.Name == "default/web" {
				s = s.Clone()
				s.Options.SlowStart = 30 * time.Second
			}
			builder.Set(s)
		}
		growth, next, refused := tracker.Follow(builder.Snapshot(), now)
		if len(refused) > 0 {
			t.Errorf("step %d: refused %v", i, refused)
		}
		builder.SetGrowth(growth)
		var got []string
		for e := range builder.Snapshot().Services.At("default/web").Ports[0].Endpoints.All() {
			got = append(got, strings.TrimPrefix(fmt.Sprintf("%v=%d", e.Addr.Addr(), e.Weight.Number()), "10.0.0."))
		}
		if text := strings.Join(got, " "); text != step.want {
			t.Errorf("step %d: %s, want %s", i, text, step.want)
		}
		due := 0
		if !next.IsZero() {
			due = int(next.Sub(t0).Seconds())
		}
		if due != step.next {
			t.Errorf("step %d: next after %d s, want %d", i, due, step.next)
		}
		for e := range builder.Snapshot().Services.At("default/plain").Ports[0].Endpoints.All() {
			if e.Weight != 0 {
				t.Errorf("step %d: %v of the Service that asks for nothing has a weight", i, e.Addr)
			}
		}
	}
}
