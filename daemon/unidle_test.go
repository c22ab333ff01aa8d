package daemon

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// TestUnidler: the first packet to an idled Service asks for its pods, once for each time that it is idled, and again
// after ten minutes. Nobody asks for pods of other Services, and a tenant with many idled ones asks at a bounded rate.
func TestUnidler(t *testing.T) {
	idledAt := map[service.Name]string{}
	u := newUnidler(func(name service.Name) string { return idledAt[name] })
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	look := func(cause ruleset.Cause, names ...service.Name) []service.Name {
		now = now.Add(10 * time.Second)
		l := traffic.Refusals{At: now}
		for _, name := range names {
			l.Services = append(l.Services, traffic.Refused{Subject: traffic.Subject{Name: name, Cause: cause}, Packets: 1})
		}
		l.Services = append(l.Services, traffic.Refused{Subject: traffic.Subject{Name: "ns/quiet", Cause: cause}})
		return u.wanted(l)
	}
	want := func(what string, got []service.Name, want ...service.Name) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: asks for %q, want %q", what, got, want)
		}
	}
	idledAt["ns/quiet"], idledAt["ns/web"] = "2025-12-31T23:00:00Z", "2025-12-31T23:00:00Z"
	want("dropped under policy Local", look(ruleset.NoLocalEndpoints, "ns/web"))
	want("one is idled", look(ruleset.NoEndpoints, "ns/other", "ns/web"), "ns/web")
	want("again", look(ruleset.NoEndpoints, "ns/web"))
	delete(idledAt, "ns/web")
	want("no more", look(ruleset.NoEndpoints, "ns/web"))
	idledAt["ns/web"] = "2026-01-01T00:00:30Z"
	want("idled once more", look(ruleset.NoEndpoints, "ns/web"), "ns/web")
	now = now.Add(10 * time.Minute)
	want("nobody heard", look(ruleset.NoEndpoints, "ns/web"), "ns/web")

	now = now.Add(time.Hour)
	var many []service.Name
	for i := range 100 {
		name := service.NewName("tenant", fmt.Sprint(i))
		idledAt[name] = "2026-01-01T00:00:00Z"
		many = append(many, name)
	}
	asked := len(look(ruleset.NoEndpoints, many...))
	for range 30 { // five minutes
		asked += len(look(ruleset.NoEndpoints, many...))
	}
	if asked != 20+10 {
		t.Errorf("asks for %d of 100 idled Services in 5 min, want 30", asked)
	}
}
