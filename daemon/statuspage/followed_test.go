package statuspage_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/daemon/statuspage"
	"nftproxy/model/flows"
	"nftproxy/model/service"
	"nftproxy/test/gen/statuspagetest"
)

// TestFollowed: the page of a Service says how its followed connections went, by endpoint, with their weights; it names
// no client, and other Services' pages have nothing of them.
func TestFollowed(t *testing.T) {
	since := time.Now().Add(-time.Minute)
	flow := func(endpoint string, result flows.Result, cause string, answer float64) flows.Flow {
		f := flows.Flow{Begin: since.Add(time.Second), Protocol: "tcp", Port: "http", Service: "a/serving", Result: result,
			Cause: cause, Ended: true, Weight: 16, Client: netip.MustParseAddrPort("203.0.113.99:4711")}
		if endpoint != "" {
			f.Endpoint = netip.MustParseAddrPort(endpoint)
		}
		if answer > 0 {
			f.AnswerSeconds = &answer
		}
		return f
	}
	page := newPage(func(c *statuspage.Config) {
		c.Flows = func(name service.Name) ([]flows.Flow, time.Time) {
			if name != "a/serving" {
				return nil, since
			}
			return []flows.Flow{flow("10.244.9.1:8080", flows.Answered, "", 0.25), flow("10.244.9.1:8080", flows.Refused, "", 0),
				flow("10.244.9.2:8080", flows.Answered, "", 0.25), flow("", flows.Dropped, "<i>", 0)}, since
		}
	})
	for _, s := range statuspagetest.Syncs(statuspagetest.Cluster().Snapshot()) {
		page.Observe(s)
	}
	a := ask(t, page, http.MethodGet, "/status?service=a/serving")
	checkHeadings(t, a.doc)
	checkIDs(t, a.doc)
	checkTables(t, a.doc)
	for _, want := range []string{"Followed connections", "10.244.9.2:8080", "16 (50 %)", "16 (100 %)",
		"dropped &lt;i&gt;"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	if strings.Contains(a.body, "203.0.113.99") {
		t.Error("the page names a client")
	}
	if b := ask(t, page, http.MethodGet, "/status?service=e/second").body; !strings.Contains(b, "None is remembered") {
		t.Error("another Service's page does not say that nothing is remembered")
	}
	if b := ask(t, sample(), http.MethodGet, "/status?service=a/serving").body; strings.Contains(b, "Followed") {
		t.Error("without --nftproxy-flows there is a section about it")
	}
}
