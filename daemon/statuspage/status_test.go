package statuspage_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/daemon/statuspage"
	"nftproxy/look/nodestatus"
	"nftproxy/model/service"
	"nftproxy/test/gen/statuspagetest"
)

// getStatus asks for the status that programs get.
func getStatus(t *testing.T, p *statuspage.Page) (s nodestatus.Status) {
	t.Helper()
	a := ask(t, p, http.MethodGet, "/status?"+nodestatus.Query)
	if a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s: %s", a.StatusCode, a.Header.Get("Content-Type"), a.body)
	}
	if err := json.Unmarshal([]byte(a.body), &s); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return s
}

// TestStatus: programs get what the page shows: the states of Services, who has trouble and why, and what is left out.
func TestStatus(t *testing.T) {
	builder := statuspagetest.Cluster()
	serving := builder.Snapshot().Services.At("a/serving")
	port := &serving.Ports[0]
	var left []service.Adjustment
	since := time.Date(2026, 11, 26, 12, 3, 7, 0, time.UTC)
	for e := range port.Endpoints.All() {
		share := service.Quarter
		if e.Ready {
			share = service.NoShare
		}
		left = append(left, service.Adjustment{PortEndpoint: port.At(e.Addr), Share: share, Since: since, Why: "silent"})
	}
	builder.SetAdjustments(service.Adjustments{}.Set(serving.Name, service.NewAdjusted(left)))
	p := newPage(func(c *statuspage.Config) {
		c.Beside = func() statuspage.Beside {
			return statuspage.Beside{
				Behind:   &nodestatus.Behind{Resources: []string{"services"}, Since: since, Error: "forbidden"},
				Warnings: []string{"kube-proxy runs beside nftproxy"}, Configuration: "abc"}
		}
		c.Problems = func(name service.Name) []string {
			if name == "f/empty" {
				return []string{"annotation nftproxy.io/weight: \"x\" is no number"}
			}
			return nil
		}
	})
	if s := getStatus(t, p); s.LastSync != nil || s.Services != 0 {
		t.Errorf("before the first sync: %+v", s)
	}
	p.Observe(statuspagetest.SyncOf(builder.Snapshot()))
	s := getStatus(t, p)
	for what, c := range map[string]struct{ got, want any }{
		"states": {s.States, map[string]int{"conflict": 1, "draining": 2, "left-out": 1, "no-endpoints": 1,
			"no-local-endpoints": 1, "quarantined": 2, "serving": 1}},
		"node":     {s.Node + " " + s.Version + " " + s.Configuration, "node-1 v1.2.3 abc"},
		"services": {s.Services, 8},
		"behind":   {fmt.Sprint(s.Behind.Resources, s.Behind.Error), "[services]forbidden"},
		"last":     {s.LastSync.Written, 7},
		"tables":   {len(s.Tables), 2},
		"left out": {fmt.Sprint(s.LeftOut, s.LeftOutCount),
			"[{a serving 10.244.0.1:8080 tcp 2026-11-26 12:03:07 +0000 UTC silent}] 1"},
		"faults": {strings.Join(s.Faults, "\n"), "the API server does not tell of services: forbidden\n" +
			"the kernel refused 2 Services or common parts of the rules\nkube-proxy runs beside nftproxy"},
	} {
		if fmt.Sprint(c.got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	var troubled []string
	for _, svc := range s.Troubled {
		troubled = append(troubled, fmt.Sprintf("%s/%s %v %q", svc.Namespace, svc.Name, svc.States, svc.Problems))
	}
	want := []string{
		`z/refused [quarantined] ["add element: no space left on device"]`,
		`/chains [quarantined] ["add chain: out of memory"]`,
		`e/second [conflict] ["203.0.113.5:80/tcp: it belongs to Service e/first"]`,
		`d/no-affinity [left-out]`,
		`f/empty [no-endpoints problems] ["annotation nftproxy.io/weight: \"x\" is no number"]`,
	}
	for i, w := range want {
		if i >= len(troubled) || !strings.HasPrefix(troubled[i], w) {
			t.Errorf("troubled: %q, want %q", troubled, want)
			break
		}
	}
	if s.TroubledCount != len(want) {
		t.Errorf("%d with trouble, want %d", s.TroubledCount, len(want))
	}
}

// TestStatusOfServices: a status of some Services counts and names these only, and says which names are wrong.
func TestStatusOfServices(t *testing.T) {
	p := sample()
	all := getStatus(t, p)
	for query, want := range map[string]string{
		"&service=e%2Fsecond":           `1 1 [{e second [conflict] `,
		"&namespace=e&service=second":   `1 1 [{e second [conflict] `,
		"&namespace=e":                  `2 1 [{e second [conflict] `,
		"&service=a%2Fserving":          `1 0 [`,
		"&service=second&service=first": `2 1 [{e second [conflict] `,
	} {
		var s nodestatus.Status
		a := ask(t, p, http.MethodGet, "/status?"+nodestatus.Query+query)
		if err := json.Unmarshal([]byte(a.body), &s); err != nil {
			t.Fatalf("%v: %s", err, a.body)
		}
		ofServices := slices.DeleteFunc(s.Troubled, func(s nodestatus.Service) bool { return s.Namespace == "" })
		parts := all.TroubledCount - len(slices.DeleteFunc(all.Troubled, func(s nodestatus.Service) bool {
			return s.Namespace == ""
		}))
		got := fmt.Sprint(s.Services, " ", s.TroubledCount-parts, " ", ofServices)
		if !strings.HasPrefix(got, want) || s.Elements != 0 || s.Node != all.Node {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	for query, want := range map[string]string{
		"&service=e%2Fthird": "404 No such Service: not in what this node serves: service \"e/third\"",
		"&service=e%2Fsecnd": "did you mean e/second?",
		"&service=%1b%5b2J":  "400 Cannot show that: \"\\x1b[2J\" is no name of a Service",
		"&namespace=a%2Fb":   "400 Cannot show that",
	} {
		a := ask(t, p, http.MethodGet, "/status?"+nodestatus.Query+query)
		var refusal nodestatus.Refusal
		_ = json.Unmarshal([]byte(a.body), &refusal)
		if got := fmt.Sprint(a.StatusCode, " ", refusal.Error); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// TestStatusBounds: however many Services have trouble, all are counted and few are named, the worst first.
func TestStatusBounds(t *testing.T) {
	builder := statuspagetest.Cluster()
	statuspagetest.Many(builder, 5000)
	p := newPage(func(c *statuspage.Config) {
		c.Problems = func(service.Name) []string { return []string{strings.Repeat("long ", 1000)} }
	})
	sync := statuspagetest.SyncOf(builder.Snapshot())
	for i := range 300 {
		sync.Quarantined[fmt.Sprintf("part-%d", i)] = errors.New("refused")
	}
	p.Observe(sync)
	a := ask(t, p, http.MethodGet, "/status?"+nodestatus.Query)
	s := getStatus(t, p)
	if s.TroubledCount < 5000 || len(s.Troubled) != nodestatus.MaxListed || s.Troubled[0].Name != "refused" {
		t.Errorf("%d with trouble, %d named, %v first", s.TroubledCount, len(s.Troubled), s.Troubled[0])
	}
	if most := 64 << 10; len(a.body) > most {
		t.Errorf("%d bytes, want at most %d", len(a.body), most)
	}
}

// TestStatusRefused: a program that asks for too much, or by a wrong name, is told so in JSON.
func TestStatusRefused(t *testing.T) {
	for _, c := range []struct{ method, host, want string }{
		{http.MethodPost, "127.0.0.1:10249", "Only GET and HEAD"}, {http.MethodGet, "evil.example", "Unknown host name"},
	} {
		a := askHost(t, sample(), c.method, c.host, "/status?"+nodestatus.Query)
		var r nodestatus.Refusal
		if err := json.Unmarshal([]byte(a.body), &r); err != nil || a.StatusCode == http.StatusOK ||
			!strings.Contains(r.Error, c.want) {
			t.Errorf("%s for %s: %d %s (%v)", c.method, c.host, a.StatusCode, a.body, err)
		}
	}
}
