package statuspage_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/test/gen/statuspagetest"
)

// An endpoint that is left out is shown with the time and the reason.
func TestEjectedShown(t *testing.T) {
	builder := statuspagetest.Cluster()
	s := builder.Snapshot().Services.At("a/serving")
	p := &s.Ports[0]
	var addr service.Endpoint
	for e := range p.Endpoints.All() {
		if e.Ready {
			addr = e
		}
	}
	since := time.Date(2026, 11, 26, 12, 3, 7, 0, time.UTC)
	left := service.NewAdjusted([]service.Adjustment{{PortEndpoint: p.At(addr.Addr), Share: service.NoShare, Since: since,
		Why: "5 connections without answer, 2 tries of this node failed"}})
	builder.SetAdjustments(service.Adjustments{}.Set(s.Name, left))
	page := newPage()
	for _, s := range statuspagetest.Syncs(builder.Snapshot()) {
		page.Observe(s)
	}
	const want = "left out, because it does not answer this node, since 12:03:07: 5 connections without answer, 2 tries " +
		"of this node failed"
	if body := ask(t, page, http.MethodGet, "/status?service=a/serving").body; !strings.Contains(body, want) {
		t.Errorf("the page does not say %q:\n%s", want, body)
	}
}

// An endpoint that is growing is shown with the time and its part.
func TestGrowingShown(t *testing.T) {
	builder := statuspagetest.Cluster()
	s := builder.Snapshot().Services.At("a/serving")
	p := &s.Ports[0]
	var list []service.Adjustment
	for e := range p.Endpoints.All() {
		list = append(list, service.Adjustment{PortEndpoint: p.At(e.Addr), Share: service.Quarter,
			Since: time.Date(2026, 11, 26, 12, 3, 7, 0, time.UTC)})
	}
	builder.SetGrowing(service.Adjustments{}.Set(s.Name, service.NewAdjusted(list)))
	page := newPage()
	for _, s := range statuspagetest.Syncs(builder.Snapshot()) {
		page.Observe(s)
	}
	const want = "ready, growing since 12:03:07: 1/4 of its weight"
	if body := ask(t, page, http.MethodGet, "/status?service=a/serving").body; !strings.Contains(body, want) {
		t.Errorf("the page does not say %q:\n%s", want, body)
	}
}
