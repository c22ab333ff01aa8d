package flows

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"nftproxy/model/flows"
)

// Path is where the metrics server has the flows, and QuerySince the parameter for what has changed after a Seq.
const (
	Path       = "/flows"
	QuerySince = "since"
)

// Answer is what is served.
type Answer struct {
	Node  string       `json:"node"`
	Flows []flows.Flow `json:"flows"`
}

// Handler serves the flows to clients on the node only: they say who talks to whom.
func (f *Follower) Handler(node string) http.Handler {
	turn := make(chan struct{}, 1)
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
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-r.Context().Done():
			return
		}
		list := f.List(since)
		if list == nil {
			list = []flows.Flow{}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Answer{Node: node, Flows: list}) // A client that has gone needs no answer.
	})
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
