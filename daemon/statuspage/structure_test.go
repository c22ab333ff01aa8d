package statuspage_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/test/gen/statuspagetest"
)

// targets are pages of each kind.
func targets() []string {
	return []string{
		"/status", "/status?q=10.96.0.0/16", "/status?q=nothing", "/status?state=conflict", "/status?page=7",
		"/status?q=" + strings.Repeat("x", 400),
		"/status?service=a/serving", "/status?service=b/none-here", "/status?service=e/second", "/status?service=f/empty",
		"/status?service=z/refused",
		"/status?service=d/no-affinity&port=1", "/status?service=no/such", "/status?view=draining",
		"/status?explain=10.96.0.7:80/tcp",
	}
}

// TestStructure: each page is a document that a screen reader can lead through.
func TestStructure(t *testing.T) {
	p := sample()
	for _, target := range targets() {
		t.Run(target[:min(40, len(target))], func(t *testing.T) {
			a := ask(t, p, http.MethodGet, target)
			checkLandmarks(t, a.doc)
			checkHeadings(t, a.doc)
			checkIDs(t, a.doc)
			checkTables(t, a.doc)
			for _, input := range elements(a.doc, "input") {
				if id := attribute(input, "id"); attribute(input, "type") != "hidden" && !strings.Contains(a.body, `<label for="`+
					id+`"`) {
					t.Errorf("the field %q has no label", id)
				}
			}
			for _, svg := range elements(a.doc, "svg") {
				if attribute(svg, "role") != "img" || len(elements(svg, "title")) != 1 || len(elements(svg, "desc")) != 1 {
					t.Error("the picture has no role, title or description")
				}
			}
		})
	}
}

func checkLandmarks(t *testing.T, doc *html.Node) {
	t.Helper()
	for _, name := range []string{"header", "main", "footer", "title", "h1"} {
		n := 0
		for _, e := range elements(doc, name) {
			if e.Namespace == "" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d elements %s, want 1", n, name)
		}
	}
	if got := attribute(elements(doc, "html")[0], "lang"); got != "en" {
		t.Errorf("language %q", got)
	}
}

// checkHeadings: no level is left out.
func checkHeadings(t *testing.T, doc *html.Node) {
	t.Helper()
	last := 0
	for d := range doc.Descendants() {
		if d.Type == html.ElementNode && len(d.Data) == 2 && d.Data[0] == 'h' && d.Data[1] >= '1' && d.Data[1] <= '6' {
			level := int(d.Data[1] - '0')
			if level > last+1 || words(d) == "" {
				t.Errorf("a heading %q of level %d comes after level %d", words(d), level, last)
			}
			last = level
		}
	}
}

// checkIDs: each id is there once, and references lead to one.
func checkIDs(t *testing.T, doc *html.Node) {
	t.Helper()
	ids := map[string]bool{}
	for d := range doc.Descendants() {
		if id := attribute(d, "id"); id != "" {
			if ids[id] {
				t.Errorf("the id %q is there twice", id)
			}
			ids[id] = true
		}
	}
	for d := range doc.Descendants() {
		for _, name := range []string{"for", "aria-labelledby", "aria-describedby"} {
			for _, id := range strings.Fields(attribute(d, name)) {
				if !ids[id] {
					t.Errorf("%s %q of <%s> leads nowhere", name, id, d.Data)
				}
			}
		}
		if _, id, found := strings.Cut(attribute(d, "href"), "#"); found && !ids[id] && id != "services" {
			t.Errorf("the link to #%s leads nowhere", id)
		}
	}
}

func checkTables(t *testing.T, doc *html.Node) {
	t.Helper()
	for _, table := range elements(doc, "table") {
		if len(elements(table, "caption")) != 1 || words(elements(table, "caption")[0]) == "" {
			t.Error("a table has no caption")
		}
		columns := 0
		for _, th := range elements(table, "th") {
			switch attribute(th, "scope") {
			case "col":
				columns++
			case "row":
			default:
				t.Errorf("the header %q has no scope", words(th))
			}
		}
		for _, tr := range elements(elements(table, "tbody")[0], "tr") {
			if n := len(elements(tr, "td")) + len(elements(tr, "th")); n != columns || len(elements(tr, "th")) != 1 {
				t.Errorf("a row has %d cells for %d columns", n, columns)
			}
		}
	}
}

// TestSelfContained: a page has nothing from elsewhere, and nothing that its
// Content-Security-Policy forbids: no script, no attribute with style or script, and the
// one style of the policy.
func TestSelfContained(t *testing.T) {
	p := sample()
	for _, target := range targets() {
		a := ask(t, p, http.MethodGet, target)
		policy := a.Header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "base-uri 'none'", "form-action 'self'",
			"frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy %q lacks %q", target, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "script-src") {
			t.Errorf("%s: the policy is weak: %s", target, policy)
		}
		styles := elements(a.doc, "style")
		if len(styles) != 1 {
			t.Fatalf("%s: %d styles", target, len(styles))
		}
		sum := sha256.Sum256([]byte(styles[0].FirstChild.Data))
		if want := "style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want) {
			t.Errorf("%s: the policy %q does not admit the style, by %s", target, policy, want)
		}
		if strings.Contains(styles[0].FirstChild.Data, "url(") || strings.Contains(styles[0].FirstChild.Data, "@import") {
			t.Errorf("%s: the style loads something", target)
		}
		for _, name := range []string{"script", "iframe", "img", "object", "embed", "base", "audio", "video"} {
			if len(elements(a.doc, name)) > 0 {
				t.Errorf("%s has an element %s", target, name)
			}
		}
		for d := range a.doc.Descendants() {
			for _, at := range d.Attr {
				switch {
				case at.Key == "style" || strings.HasPrefix(at.Key, "on") || at.Key == "src" || at.Key == "action" ||
					at.Key == "srcset":
					t.Errorf("%s: <%s> has an attribute %s", target, d.Data, at.Key)
				case at.Key == "href" && !strings.HasPrefix(at.Val, "?") && !strings.HasPrefix(at.Val, "#") && at.Val != "data:,":
					t.Errorf("%s: a link to %q", target, at.Val)
				}
			}
		}
	}
}

// TestHeaders: no other site can read the page or put it into a frame, and no cache keeps it.
func TestHeaders(t *testing.T) {
	for _, target := range targets() {
		h := ask(t, sample(), http.MethodGet, target).Header
		for name, want := range map[string]string{
			"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %s: %q, want %q", target, name, got, want)
			}
		}
	}
}

// TestEscaping: a name or message is text, whatever it holds.
func TestEscaping(t *testing.T) {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(1)>' style=x`
	const hidden = "a\x1b[31mb\u202ec\x00d\xff"
	b := snapshots.NewBuilder(service.Node{Name: evil, Zone: hidden})
	e := statuspagetest.Endpoint("10.0.0.1:80", "ready")
	e.Node, e.Zones = evil, service.NewHints([]string{evil})
	b.Set(&service.Service{Name: evil, ClusterIPs: statuspagetest.Addrs("10.96.0.1"),
		Ports: []service.Port{statuspagetest.Port(evil, 80, 0, e)}})
	b.Set(&service.Service{Name: hidden, ClusterIPs: statuspagetest.Addrs("10.96.0.2"),
		ExternalIPs: statuspagetest.Addrs("10.96.0.1"), Ports: []service.Port{statuspagetest.Port(hidden, 80, 0, e)}})
	p := newPage()
	s := statuspagetest.SyncOf(b.Snapshot())
	s.Err = errors.New(evil + hidden)
	s.Quarantined = map[string]error{evil: errors.New(evil), hidden: errors.New(hidden), evil + "2": errors.New(hidden)}
	p.Observe(s)
	for target := range strings.FieldsSeq("/status /status?q=" + escape(evil) + " /status?q=" + escape(hidden) +
		" /status?state=" + escape(evil) +
		" /status?service=" + escape(evil) + " /status?service=" + escape(hidden) + " /status?service=x" + escape(evil)) {
		a := ask(t, p, http.MethodGet, target)
		for _, name := range []string{"script", "img"} {
			if len(elements(a.doc, name)) > 0 {
				t.Errorf("%s: a name became an element %s", target, name)
			}
		}
		for d := range a.doc.Descendants() {
			if attribute(d, "onerror") != "" || attribute(d, "style") != "" {
				t.Errorf("%s: a name became an attribute", target)
			}
		}
		if strings.ContainsAny(a.body, "\x1b\x00\u202e") || strings.ToValidUTF8(a.body, "?") != a.body {
			t.Errorf("%s has control characters", target)
		}
	}
	// The link to a Service leads to it, whatever its name.
	for _, link := range elements(get(t, p, "/status").doc, "a") {
		if href := attribute(link, "href"); strings.HasPrefix(href, "?service=") {
			if a := ask(t, p, http.MethodGet, "/status"+href); a.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", href, a.Status)
			}
		}
	}
}

// escape escapes each byte for a query.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteString("%" + strings.ToUpper(strconv.FormatUint(uint64(s[i])|0x100, 16)[1:]))
	}
	return b.String()
}

// TestMethods: the page only shows.
func TestMethods(t *testing.T) {
	p := sample()
	whole := get(t, p, "/status")
	head := ask(t, p, http.MethodHead, "/status")
	if head.StatusCode != http.StatusOK || head.Header.Get("Content-Length") == "" || whole.body == "" {
		t.Errorf("HEAD: %s, length %q", head.Status, head.Header.Get("Content-Length"))
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch,
		http.MethodOptions} {
		a := ask(t, p, method, "/status")
		if a.StatusCode != http.StatusMethodNotAllowed || a.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %s, Allow %q", method, a.Status, a.Header.Get("Allow"))
		}
	}
}

// TestHosts: another site cannot read the page by a name of its own that leads here.
func TestHosts(t *testing.T) {
	p := sample()
	for host, want := range map[string]int{
		"127.0.0.1:10249": 200, "localhost:10249": 200, "[::1]:10249": 200, "[::1]": 200, "192.168.0.1": 200, "node-1": 200,
		"NODE-1.:80":  200,
		"a.localhost": 200, "prometheus": 200, "": 200,
		"evil.example": 421, "evil.example:10249": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421,
		"node-1.evil.example:80": 421,
	} {
		a := askHost(t, p, http.MethodGet, host, "/status")
		if a.StatusCode != want {
			t.Errorf("host %q: %s, want %d", host, a.Status, want)
		}
	}
}

// TestManyErrors: long errors are cut, so that neither memory nor page grows with them.
func TestManyErrors(t *testing.T) {
	p := newPage()
	s := statuspagetest.SyncOf(statuspagetest.Cluster().Snapshot())
	s.Err = proxy.FamilyErrors{nft.IPv4: errors.New(strings.Repeat("é", 1<<20)),
		nft.IPv6: errors.New(strings.Repeat("x", 1<<20))}
	s.Quarantined = map[string]error{"z/refused": errors.New(strings.Repeat("y", 1<<20))}
	for i := range 5000 {
		s.Quarantined["other-"+strconv.Itoa(i)] = errors.New(strings.Repeat("y", 1<<10))
	}
	for range 200 {
		p.Observe(s)
	}
	for _, target := range []string{"/status", "/status?service=z/refused"} {
		if n := len(get(t, p, target).body); n > 300<<10 {
			t.Errorf("%s has %d bytes", target, n)
		}
	}
}
