package statuspage_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/explain"
	"nftproxy/daemon/statuspage"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/test/statuspagetest"
)

// TestExplanation: each address has a link to its explanation, which shows all of it.
func TestExplanation(t *testing.T) {
	asked := ""
	p := newPage(func(c *statuspage.Config) {
		c.Explain = func(_ context.Context, from, destination string, objects *service.Snapshot) (explain.Explanation, error) {
			asked = from + ">" + destination
			if objects.Services.Len() == 0 || destination == "bad" {
				return explain.Explanation{}, errors.New("not a packet: <bad>")
			}
			return statuspagetest.Explanation(), nil
		}
	})
	p.Observe(statuspagetest.SyncOf(statuspagetest.Cluster().Snapshot()))
	var targets []string
	for _, a := range elements(get(t, p, "/status?service=f/empty").doc, "a") {
		if href := attribute(a, "href"); strings.HasPrefix(href, "?explain=") {
			targets = append(targets, words(a))
			get(t, p, "/status"+href)
			if got := ">" + strings.TrimPrefix(words(a), "Explain "); got != asked {
				t.Errorf("the link %q asks for %q", words(a), asked)
			}
		}
	}
	if want := "Explain 10.96.0.7:80/tcp, Explain [fd00::7]:80/tcp, Explain 10.96.0.7:53/tcp, Explain [fd00::7]:53/tcp"; strings.Join(targets, ", ") != want {
		t.Errorf("links %q, want %s", targets, want)
	}
	a := get(t, p, "/status?explain=10.96.0.7:80/tcp&from=node")
	for _, want := range []string{
		"What the rules do with a packet to 10.96.0.7:80/tcp", "endpoint: one of <2> endpoints.", "192.168.0.1 (node)", "a/serving:http",
		"10.244.0.1:8080 50 % masqueraded by a rule by eth0 ready", "the client keeps 10.244.0.1:8080 for 60 s", "a cause", "a remedy", "a firewall", "a note", "assumed",
		"prerouting, rule 2 goes to the chain", "jump somewhere 10.96.0.7 . tcp . 80", "Otherwise, with a chance of 12.5 %",
		"nftproxy explain 10.96.0.7:80/tcp",
	} {
		if !strings.Contains(words(a.doc), want) {
			t.Errorf("the page lacks %q:\n%s", want, words(a.doc))
		}
	}
	if asked != "node>10.96.0.7:80/tcp" {
		t.Errorf("asked %q", asked)
	}
	checkLandmarks(t, a.doc)
	checkHeadings(t, a.doc)
	checkIDs(t, a.doc)
	checkTables(t, a.doc)
	if a := ask(t, p, http.MethodGet, "/status?explain=bad"); a.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(words(a.doc), "not a packet: <bad>") {
		t.Errorf("a bad destination: %s %s", a.Status, words(a.doc))
	}
}

// TestExplanationsAreRationed: explanations get a share of a core, and none reads tables that
// would need more memory than the daemon itself.
func TestExplanationsAreRationed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := newPage(func(c *statuspage.Config) {
			c.Explain = func(context.Context, string, string, *service.Snapshot) (explain.Explanation, error) {
				n++
				time.Sleep(time.Second)
				return statuspagetest.Explanation(), nil
			}
		})
		s := statuspagetest.SyncOf(statuspagetest.Cluster().Snapshot())
		p.Observe(s)
		refused := 0
		for range 500 {
			a := ask(t, p, http.MethodGet, "/status?explain=10.96.0.7:80")
			if a.StatusCode == http.StatusTooManyRequests {
				refused++
				if a.Header.Get("Retry-After") == "" || !strings.Contains(words(a.doc), "or run on the node: nftproxy explain 10.96.0.7:80") {
					t.Fatalf("the refusal says %s", words(a.doc))
				}
			}
			time.Sleep(time.Second)
		}
		if n < 10 || n > 14 || refused != 500-n {
			t.Errorf("%d explanations of a second each in 500 s, %d refused", n, refused)
		}
		time.Sleep(time.Hour)
		large := &nft.Table{}
		large.Parts = large.Parts.Set("large", nft.NewPart(make([]nft.Element, 150_000), nil))
		s.Applied = &nft.Program{IPv4: large, IPv6: large}
		p.Observe(s)
		before := n
		if a := ask(t, p, http.MethodGet, "/status?explain=10.96.0.7:80"); a.StatusCode != http.StatusServiceUnavailable || n != before || !strings.Contains(words(a.doc), "no more than 200,000") {
			t.Errorf("large tables: %s %s", a.Status, words(a.doc))
		}
	})
}
