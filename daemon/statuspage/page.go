// Package statuspage serves one page for people, beside the metrics: the health of the proxy, its last syncs as a
// picture, and the Services as this node serves them, those with trouble first. The page is one HTML document without
// scripts, and loads nothing else. It shows what the loop's own syncs told, asks the kernel nothing, and changes
// nothing. Work for pages is bounded: who loads them all the time gets a share of a core, and then a refusal that says
// so.
package statuspage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/html"

	"nftproxy/daemon/health"
	"nftproxy/daemon/proxy"
	"nftproxy/look/explain"
	"nftproxy/look/inspect"
	"nftproxy/look/nodestatus"
	"nftproxy/model/flows"
	"nftproxy/model/ip"
	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// Path is where the page is served. All links on it are relative and change the query only,
// so that it works behind any prefix.
const Path = "/status"

// Config is what the page tells beside the syncs.
type Config struct {
	Version, Node string
	// Table is the name of the nftables tables, for the commands on the page.
	Table   string
	Started time.Time
	// Ready says whether the proxy is ready, with the body of /readyz.
	Ready  func() (ready bool, text string)
	Status func() health.Status
	// NodePortAddresses says which addresses serve node ports.
	NodePortAddresses service.NodePortAddresses
	// Problems says what cannot be used now of the objects of a Service; it is asked for each Service of a list.
	Problems func(service.Name) []string
	// Held says in words how many connections of a Service are held, and since when, by the latest look at the kernel's
	// counters; nil where nobody looks.
	Held func(service.Name) string
	// Connections counts the connections to the Services' endpoints, by connection tracking. With an error it may return
	// those that it found. It costs CPU time, so the page calls it only when it is asked, and not often.
	Connections func(context.Context, service.Snapshot) (*inspect.Connections, error)
	// Explain explains the first packet of a connection by the kernel's rules, as nftproxy explain does. It costs CPU time
	// and memory, so the page calls it only when it is asked, and not often.
	Explain func(ctx context.Context, from explain.Origin, to explain.Destination,
		objects *service.Snapshot) (explain.Explanation, error)
	// Flows returns the followed connections of a Service, and a moment: of those that began after it, none is missing.
	// It is nil if connections are not followed.
	Flows func(service.Name) (list []flows.Flow, since time.Time)
	// Beside is what other parts of the process know of the node; nil if there are none.
	Beside func() Beside
}

// Beside is what other parts of the process know of the node, for programs.
type Beside struct {
	Behind        *nodestatus.Behind
	Warnings      []string
	Configuration string
}

// The bounds on work for pages.
const (
	// rest is the part of a core that pages get in the long run, as one in so many, and burst what they may take at once.
	rest  = 50
	burst = 3 * time.Second
	// maxInFlight bounds the requests that wait, are worked on or are being answered, and so the memory for their pages.
	maxInFlight = 16
	// writeTimeout is how long a client may take to read an answer.
	writeTimeout = 30 * time.Second
)

// Page serves the page. Its methods are safe for concurrent use.
type Page struct {
	config Config
	// inFlight has a token for each request.
	inFlight chan struct{}

	// turn holds the budget while no request is worked on: one at a time works.
	turn chan *pace.Budget
	// look and explaining, the budget of explanations, belong to the request that works.
	look       look
	explaining pace.Budget

	// newest is the newest view, nil before the first sync.
	newest  atomic.Pointer[view]
	history history
}

// view is what the newest sync told about the Services. But for problems and held, it never changes.
type view struct {
	snapshot service.Snapshot
	// problems is that of Config, and tells of now.
	problems func(service.Name) []string
	// held is that of Config, which is never nil here.
	held func(service.Name) string
	// quarantined has the reason for each part that the kernel refused.
	quarantined map[string]error
	// failures says of each family, in the order of nft.Families, why the program is not in force there; empty if it is.
	failures ip.PerFamily[string]
	// applied is the program in force.
	applied *nft.Program
	// elements counts the elements of applied, once: it looks at every part.
	elements func() int
	// at is when the sync ended.
	at time.Time
}

// New makes a page without syncs.
func New(c Config) *Page {
	if c.Held == nil {
		c.Held = func(service.Name) string { return "" }
	}
	p := &Page{config: c, inFlight: make(chan struct{}, maxInFlight), turn: make(chan *pace.Budget, 1),
		look: look{budget: pace.Budget{Rest: lookShare}}, explaining: pace.Budget{Rest: explainShare, Burst: explainBurst}}
	p.turn <- &pace.Budget{Rest: rest, Burst: burst}
	return p
}

// Observe takes note of one sync. Its cost does not depend on the number of Services.
func (p *Page) Observe(s proxy.Sync) {
	v := &view{snapshot: s.Snapshot, problems: p.config.Problems, held: p.config.Held,
		quarantined: s.Quarantined, applied: s.Applied,
		at: s.End()}
	v.elements = sync.OnceValue(func() int {
		if v.applied == nil {
			return 0
		}
		return v.applied.Counts().Elements
	})
	for i, f := range nft.Families() {
		if err := s.FamilyErr(f); err != nil {
			v.failures[i] = cut(err.Error(), maxError)
		}
	}
	p.history.add(recordOf(&s))
	p.newest.Store(v)
}

// ServeHTTP answers GET and HEAD.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header())
	answer := p.refusal(r)
	if answer == nil {
		select {
		case p.inFlight <- struct{}{}:
			defer func() { <-p.inFlight }()
			answer = p.work(r)
		default:
			answer = p.trouble(http.StatusServiceUnavailable, "Too many requests at once",
				fmt.Sprintf("nftproxy answers %d requests for this page at a time. Load it again in a moment.", maxInFlight))
		}
	}
	var body bytes.Buffer
	var err error
	if forPrograms(r) {
		w.Header().Set("Content-Type", "application/json")
		err = json.NewEncoder(&body).Encode(answer.object())
	} else {
		err = html.Render(&body, answer.document)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("write the page: %v", err), http.StatusInternalServerError)
		return
	}
	if answer.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(answer.retryAfter/time.Second)+1))
	}
	if answer.code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", "GET, HEAD")
	}
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	// A connection that knows no deadline, such as a test's, has no slow reader either.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.WriteHeader(answer.code)
	_, _ = w.Write(body.Bytes()) // An error means that the client has gone.
}

// answer is a page with its status, or what programs get in its place.
type answer struct {
	code     int
	document *html.Node
	// status is for programs; nil if refused says in words why there is none.
	status  *nodestatus.Status
	refused string
	// retryAfter is when the client may ask again, 0 for no advice.
	retryAfter time.Duration
}

// object is what programs get.
func (a *answer) object() any {
	if a.status != nil {
		return a.status
	}
	return nodestatus.Refusal{Error: a.refused}
}

// forPrograms says whether the answer is to be a Status in place of the page.
func forPrograms(r *http.Request) bool {
	return r.URL.RawQuery == nodestatus.Query || strings.HasPrefix(r.URL.RawQuery, nodestatus.Query+"&")
}

// setHeaders sets the headers of all answers. The policy admits the page's own style and
// nothing else: no script, no other source, no frame around the page.
func setHeaders(h http.Header) {
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src '"+styleHash()+"'; img-src data:; base-uri 'none'; "+
		"form-action 'self'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// refusal is the answer to a request that costs no work; nil for one that does.
func (p *Page) refusal(r *http.Request) *answer {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return p.trouble(http.StatusMethodNotAllowed, "Only GET and HEAD", "This page only shows. It takes no other request.")
	case !p.knownHost(r.Host):
		return p.trouble(http.StatusMisdirectedRequest, "Unknown host name", fmt.Sprintf(
			"The request is for the host %q. This page answers requests for an IP address, localhost, a name without dots or "+
				"the node's name. "+
				"Otherwise another site, by a name of its own that leads here, could read the page in your browser.",
			cut(r.Host, maxError)))
	}
	return nil
}

// knownHost says whether a browser that asks for the host cannot have been led here by a
// foreign site whose name resolves to our address.
func (p *Page) knownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	return !strings.Contains(name, ".") || strings.HasSuffix(name, ".localhost") || name == strings.ToLower(p.config.Node)
}

// work makes a page, when it is the request's turn and the budget has something left.
func (p *Page) work(r *http.Request) *answer {
	var budget *pace.Budget
	select {
	case budget = <-p.turn:
		defer func() { p.turn <- budget }()
	case <-r.Context().Done():
		return p.trouble(http.StatusServiceUnavailable, "Too late", "The client has gone.")
	}
	begun := time.Now()
	if wait := budget.Ready().Sub(begun); wait > 0 {
		a := p.trouble(http.StatusTooManyRequests, "Loaded too often", fmt.Sprintf(
			"This page has been loaded so often that it has used up its share of the processor (1/%d of a core). Load it "+
				"again in %s. "+
				"Commands such as nftproxy get services do not count.", rest, duration(wait.Round(time.Second)+time.Second)))
		a.retryAfter = wait
		return a
	}
	// The elapsed time is at least the CPU time of this goroutine.
	rationed := false
	defer func() {
		if !rationed {
			budget.Spend(time.Now(), time.Since(begun))
		}
	}()
	if forPrograms(r) {
		return p.statusOf(begun, r.URL.Query())
	}
	q, err := parseRequest(r.URL.Query())
	if err != nil {
		return p.trouble(http.StatusBadRequest, "Cannot show that", err.Error()+".")
	}
	switch {
	case q.draining:
		rationed = !p.look.next().After(begun) // Looks and explanations have budgets of their own.
		return p.drainingPage(r.Context())
	case q.explain != explain.Destination{}:
		rationed = !p.explaining.Ready().After(begun)
		return p.explanationPage(r.Context(), q, &p.explaining)
	case q.service != "":
		return p.servicePage(q)
	}
	return p.overview(q)
}
