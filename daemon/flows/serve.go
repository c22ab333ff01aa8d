package flows

import (
	"context"
	"encoding/json"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"nftproxy/look/inspect"
	"nftproxy/look/nodestatus"
	"nftproxy/model/flows"
	"nftproxy/model/service"
)

// Path is where the metrics server has the flows, and QuerySince the parameter for what has changed after a Seq. The
// parameters of the status page for Services (nodestatus.QueryService) select flows, too. It is a bad request to name a
// Service that the node neither serves nor has a flow of.
const (
	Path       = "/flows"
	QuerySince = "since"
)

const (
	// maxNames is how many names of Services a request may have.
	maxNames = 100
	// unread is how many answers, of some megabytes each, wait for their clients to read them at once, and readTime how
	// long each waits.
	unread, readTime = 8, 5 * time.Second
)

// Answer is what is served.
type Answer struct {
	Node string `json:"node"`
	// Time is the node's. Of the flows that began after Since, none has been forgotten. SinceIn has the same for the
	// flows of each namespace of Flows; the empty name stands for all others. It is nil from a node that knows Since only.
	Time    time.Time            `json:"time"`
	Since   time.Time            `json:"since"`
	SinceIn map[string]time.Time `json:"sinceIn"`
	Flows   []flows.Flow         `json:"flows"`
	// Error is why nothing is followed now; empty while something is.
	Error string `json:"error,omitempty"`
}

// Handler serves the flows to clients on the node only: they say who talks to whom.
func (f *Follower) Handler(node string) http.Handler {
	answers, turn := make(chan struct{}, unread), make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r) || forwarded(r) || !direct(r.Host) {
			http.Error(w, "only for clients on the node", http.StatusForbidden)
			return
		}
		since, err := strconv.ParseUint(r.URL.Query().Get(QuerySince), 10, 64)
		if err != nil && r.URL.Query().Has(QuerySince) {
			http.Error(w, QuerySince+": want a number", http.StatusBadRequest)
			return
		}
		if !enter(r.Context(), answers) {
			return
		}
		defer func() { <-answers }()
		body, err := f.body(r, turn, node, since)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		// A connection that knows no deadline, such as a test's, has no slow reader either. A client that has gone needs
		// no answer.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTime))
		_, _ = w.Write(body)
	})
}

// enter takes a place, and says whether it got one before the client went.
func enter(ctx context.Context, places chan<- struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// body makes an answer. One is made at a time, and no client that does not read delays the next one.
func (f *Follower) body(r *http.Request, turn chan struct{}, node string, since uint64) ([]byte, error) {
	if !enter(r.Context(), turn) {
		return nil, context.Cause(r.Context())
	}
	defer func() { <-turn }()
	list, err := f.selected(r.URL.Query(), since)
	if err != nil {
		return nil, err
	}
	all, others := f.since("")
	a := Answer{Node: node, Time: time.Now().UTC(), Since: all, SinceIn: map[string]time.Time{"": others}, Flows: list,
		Error: f.Silent()}
	for i := range list {
		namespace, _ := list[i].Service.Split()
		if _, known := a.SinceIn[namespace]; !known {
			_, a.SinceIn[namespace] = f.since(namespace)
		}
	}
	return json.Marshal(a)
}

// selected lists the flows of the Services that a query names, of all if it names none. A Service is known while the
// node serves it or remembers a flow of it.
func (f *Follower) selected(query url.Values, since uint64) ([]flows.Flow, error) {
	names := query[nodestatus.QueryService]
	s, err := inspect.NewSelection(query.Get(nodestatus.QueryNamespace), names[:min(len(names), maxNames)])
	if err != nil {
		return nil, err
	}
	all := f.List(0)
	if served := f.served.Load(); served != nil {
		if err := s.Unknown(namesOf(all, served), "what this node serves"); err != nil {
			return nil, err
		}
	}
	list := []flows.Flow{}
	for i := range all {
		if all[i].Seq > since && s.Has(all[i].Service) {
			list = append(list, all[i])
		}
	}
	return list, nil
}

// namesOf yields the Services of flows and of a snapshot. Some come more than once.
func namesOf(list []flows.Flow, served *service.Snapshot) iter.Seq[service.Name] {
	return func(yield func(service.Name) bool) {
		for name := range inspect.NamesOf(served) {
			if !yield(name) {
				return
			}
		}
		for i := range list {
			if !yield(list[i].Service) {
				return
			}
		}
	}
}

// forwarded says whether a proxy passes the request on: it is on the node, but its client may not be.
func forwarded(r *http.Request) bool {
	return slices.ContainsFunc([]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Uri", "Via"}, func(name string) bool {
		return r.Header.Values(name) != nil
	})
}

// direct says whether the host of a request is an address or localhost. Another name may be one that a web page has
// pointed to this node.
func direct(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "localhost"
}

// local says whether the client is on the node: on loopback, or at the address that it asks.
func local(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if err != nil || at == nil {
		return false
	}
	to, err := netip.ParseAddrPort(at.String())
	return from.Addr().Unmap().IsLoopback() || err == nil && from.Addr().Unmap() == to.Addr().Unmap()
}
