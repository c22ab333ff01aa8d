package statuspage_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"nftproxy/daemon/health"
	"nftproxy/daemon/proxy"
	"nftproxy/daemon/statuspage"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/test/gen/statuspagetest"
)

// newPage makes a page on node-1 that is ready. It has no bound on CPU time: that has tests
// of its own.
func newPage(change ...func(*statuspage.Config)) *statuspage.Page {
	return statuspage.Unlimited(statuspagetest.New(change...))
}

// answer is an answer of the page, parsed.
type answer struct {
	*http.Response
	body string
	doc  *html.Node
}

func ask(t testing.TB, h http.Handler, method, target string) answer {
	t.Helper()
	return askHost(t, h, method, "127.0.0.1:10249", target)
}

func askHost(t testing.TB, h http.Handler, method, host, target string) answer {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.Host = host
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	a := answer{Response: w.Result()}
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	a.body = string(b)
	if a.doc, err = html.Parse(strings.NewReader(a.body)); err != nil {
		t.Fatal(err)
	}
	return a
}

// get asks for a page that has to be there.
func get(t testing.TB, h http.Handler, target string) answer {
	t.Helper()
	a := ask(t, h, http.MethodGet, target)
	if a.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s\n%s", target, a.Status, words(a.doc))
	}
	return a
}

// words is the text that a reader sees, with one blank between words.
func words(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode && d.Parent.Data != "style" {
			b.WriteString(d.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// elements lists the elements of that name.
func elements(n *html.Node, name string) (list []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == name {
			list = append(list, d)
		}
	}
	return list
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// names lists the Services of the overview in their order.
func names(a answer) (list []string) {
	for _, t := range elements(a.doc, "table") {
		if strings.Contains(attribute(t, "class"), "services") {
			for _, th := range elements(t, "th") {
				if attribute(th, "scope") == "row" {
					list = append(list, words(th))
				}
			}
		}
	}
	return list
}

// sample is a page with a Service of each state, and syncs of each outcome.
func sample() *statuspage.Page {
	p := newPage()
	for _, s := range statuspagetest.Syncs(statuspagetest.Cluster().Snapshot()) {
		p.Observe(s)
	}
	return p
}

// TestHealthShown: heading and text are those of the health checks.
func TestHealthShown(t *testing.T) {
	status := func(healthy bool) func() health.Status {
		return func() health.Status {
			return health.Status{Healthy: healthy, Status: map[string]health.FamilyStatus{"IPv4": {LastUpdated: time.Now()}}}
		}
	}
	for _, c := range []struct {
		name     string
		ready    bool
		readyz   string
		healthy  bool
		err      error
		heading  string
		contains []string
	}{
		{"ready", true, "ok", true, nil, "Ready: the rules are in force", []string{"Live yes", "/readyz ok"}},
		{"waiting", false, "IPv4: the first complete rules are not in the kernel yet: waiting for Services", true, nil,
			"Not ready: the rules have not been in force yet", []string{"waiting for Services"}},
		{"late", true, "ok", false, nil, "Unhealthy: changes do not reach the kernel", []string{"Live no"}},
		{"refused", true, "ok", true, proxy.FamilyErrors{nft.IPv6: errors.New("busy <b>")},
			"Ready, but the newest rules are not in force", []string{"table ip6 nftproxy) not in force: busy <b>"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPage(func(config *statuspage.Config) {
				config.Ready = func() (bool, string) { return c.ready, c.readyz }
				config.Status = status(c.healthy)
			})
			s := statuspagetest.SyncOf(snapshots.NewBuilder(statuspagetest.Node()).Snapshot())
			s.Err = c.err
			p.Observe(s)
			a := get(t, p, "/status")
			if got := words(elements(a.doc, "h1")[0]); got != c.heading {
				t.Errorf("heading %q, want %q", got, c.heading)
			}
			for _, want := range append(c.contains, "v1.2.3", "node-1", "zone-a", "3 h 0 min ago") {
				if !strings.Contains(words(a.doc), want) {
					t.Errorf("the page lacks %q:\n%s", want, words(a.doc))
				}
			}
		})
	}
}

// TestBeforeFirstSync: the page says why there is nothing yet.
func TestBeforeFirstSync(t *testing.T) {
	p := newPage(func(c *statuspage.Config) {
		c.Ready = func() (bool, string) { return false, "waiting for EndpointSlices" }
	})
	for _, want := range []string{"Not ready", "waiting for EndpointSlices", "No sync has ended yet"} {
		if got := words(get(t, p, "/status").doc); !strings.Contains(got, want) {
			t.Errorf("the page lacks %q:\n%s", want, got)
		}
	}
	if a := ask(t, p, http.MethodGet, "/status?service=a/b"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a Service: %s", a.Status)
	}
}

// TestOrder: Services in quarantine come first, then the others with trouble, by state
// and name.
func TestOrder(t *testing.T) {
	p := sample()
	want := []string{"z/refused", "f/empty", "e/second", "d/no-affinity", "c/draining", "b/none-here", "a/serving",
		"e/first"}
	if got := names(get(t, p, "/status")); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("order %v, want %v", got, want)
	}
	for slug, want := range map[string]string{
		"quarantined": "z/refused", "no-endpoints": "f/empty", "conflict": "e/second", "draining": "c/draining",
		"no-local-endpoints": "b/none-here",
		"left-out":           "d/no-affinity", "serving": "a/serving e/first",
	} {
		if got := strings.Join(names(get(t, p, "/status?state="+slug)), " "); got != want {
			t.Errorf("state %s: %s, want %s", slug, got, want)
		}
	}
	if got := words(get(t, p, "/status").doc); !strings.Contains(got, "chains : add chain: out of memory") {
		t.Errorf("the page lacks the part in quarantine that is no Service:\n%s", got)
	}
	if title := words(elements(get(t, p, "/status").doc, "title")[0]); !strings.HasPrefix(title,
		"1 Service in quarantine") {
		t.Errorf("title %q", title)
	}
}
