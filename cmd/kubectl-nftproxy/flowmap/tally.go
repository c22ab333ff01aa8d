package flowmap

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/flows"
)

// Answer is what a node answers: nftproxy flows -o json.
type Answer struct {
	Node string `json:"node"`
	// Time is the node's. Of the flows that began after Since, none has been forgotten. SinceIn has the same for the
	// flows of each namespace; the empty name stands for all others. It is nil from a node that knows Since only.
	Time    time.Time            `json:"time"`
	Since   time.Time            `json:"since"`
	SinceIn map[string]time.Time `json:"sinceIn"`
	Flows   []flows.Flow         `json:"flows"`
}

// since returns the moment after which no flow like that one has been forgotten.
func (a *Answer) since(f *flows.Flow) time.Time {
	namespace, _ := f.Service.Split()
	for _, name := range []string{namespace, ""} {
		if at, known := a.SinceIn[name]; known {
			return at
		}
	}
	return a.Since
}

// Tally joins the answers of nodes. It is not safe for concurrent use.
type Tally struct {
	window time.Duration
	shown  func(*flows.Flow) bool
	most   int
	pairs  map[pair]*flows.Stats
	// without are the connections for which there was no room.
	without flows.Stats
}

// pair is who talks to whom by address. endpoint is not valid if the rules led nowhere.
type pair struct {
	client, endpoint netip.Addr
	port             Port
}

// mostPairs bounds the memory: a pair takes some 500 bytes.
const mostPairs = 100_000

// NewTally makes a Tally of the flows that shown accepts and that began in the window before a node's answer, or have
// not ended.
func NewTally(window time.Duration, shown func(*flows.Flow) bool) *Tally {
	return &Tally{window: window, shown: shown, most: mostPairs, pairs: map[pair]*flows.Stats{}}
}

// Add adds what a node answers.
func (t *Tally) Add(a *Answer) {
	for i := range a.Flows {
		f := &a.Flows[i]
		// A namespace of which the node has forgotten flows of the window has a shorter one.
		from, over := a.Time.Add(-t.window), time.Duration(0)
		if since := a.since(f); since.After(from) {
			from = since
		}
		if f.Begin.After(from) {
			over = max(time.Second, a.Time.Sub(from))
		}
		if over == 0 && f.Ended || !t.shown(f) || f.Weight <= 0 {
			continue
		}
		t.of(f).Add(f, over)
	}
}

// of returns where a flow counts.
func (t *Tally) of(f *flows.Flow) *flows.Stats {
	p := pair{f.Client.Addr().Unmap(), f.Endpoint.Addr().Unmap(), Port{f.Service, f.Port, f.Protocol}}
	s := t.pairs[p]
	switch {
	case s == nil && len(t.pairs) >= t.most:
		return &t.without
	case s == nil:
		s = &flows.Stats{}
		t.pairs[p] = s
	}
	return s
}

// Addresses are those of the clients and endpoints, each once, in order.
func (t *Tally) Addresses() []netip.Addr {
	seen := map[netip.Addr]bool{}
	for p := range t.pairs {
		seen[p.client] = true
		if p.endpoint.IsValid() {
			seen[p.endpoint] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), netip.Addr.Compare)
}

// Link is who talks to whom.
type Link struct {
	Client Party
	Port   Port
	// Endpoint is the zero Party if the rules led nowhere.
	Endpoint Party
	flows.Stats
}

// mostUnnamed is how many clients without a name are shown by their addresses.
const mostUnnamed = 8

// Links groups by workload, the links with most connections first.
func (t *Tally) Links(names Names) []Link {
	unnamed := t.busiestUnnamed(names)
	type key struct {
		client, endpoint Party
		port             Port
	}
	links := map[key]*Link{}
	// The order decides how fractions are rounded.
	for _, p := range slices.SortedFunc(maps.Keys(t.pairs), comparePairs) {
		client := names(p.client)
		if client == (Party{}) {
			client = Others()
			if unnamed[p.client] {
				client = Party{Name: p.client.String()}
			}
		}
		endpoint := Party{}
		if p.endpoint.IsValid() {
			endpoint = cmp.Or(names(p.endpoint), Party{Name: p.endpoint.String()})
		}
		k := key{client, endpoint, p.port}
		if links[k] == nil {
			links[k] = &Link{Client: client, Port: p.port, Endpoint: endpoint}
		}
		links[k].Join(t.pairs[p])
	}
	var list []Link
	for _, l := range links {
		list = append(list, *l)
	}
	slices.SortFunc(list, func(a, b Link) int {
		return cmp.Or(cmp.Compare(weight(&b.Stats), weight(&a.Stats)), a.compare(&b))
	})
	return list
}

func comparePairs(a, b pair) int {
	return cmp.Or(a.client.Compare(b.client), a.port.compare(b.port), a.endpoint.Compare(b.endpoint))
}

// busiestUnnamed are the clients without a name that are shown by their addresses.
func (t *Tally) busiestUnnamed(names Names) map[netip.Addr]bool {
	weights := map[netip.Addr]float64{}
	for p, s := range t.pairs {
		if names(p.client) == (Party{}) {
			weights[p.client] += weight(s)
		}
	}
	list := slices.SortedFunc(maps.Keys(weights), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(weights[b], weights[a]), a.Compare(b))
	})
	busiest := map[netip.Addr]bool{}
	for _, a := range list[:min(len(list), mostUnnamed)] {
		busiest[a] = true
	}
	return busiest
}

// weight is by what links are compared: connections, new or open.
func weight(s *flows.Stats) float64 { return max(s.New, s.Open) }

func (l *Link) compare(m *Link) int {
	return cmp.Or(l.Client.compare(m.Client), l.Port.compare(m.Port), l.Endpoint.compare(m.Endpoint))
}

// Bound keeps some of the links, all if most is 0, in their order: half of them are those with most failures, so that
// who is busy hides nobody's failures. The note says what is left out; it is empty for nothing.
func Bound(links []Link, most int) (kept []Link, note string) {
	if most <= 0 || len(links) <= most {
		return links, ""
	}
	failing := make([]int, len(links))
	for i := range failing {
		failing[i] = i
	}
	slices.SortStableFunc(failing, func(a, b int) int { return cmp.Compare(links[b].Failed, links[a].Failed) })
	keep := map[int]bool{}
	for _, i := range failing[:most/2] {
		if links[i].Failed > 0 {
			keep[i] = true
		}
	}
	var without flows.Stats
	for i := range links {
		if !keep[i] && len(keep) < most {
			keep[i] = true
		}
	}
	for i := range links {
		if keep[i] {
			kept = append(kept, links[i])
		} else {
			without.Join(&links[i].Stats)
		}
	}
	return kept, fmt.Sprintf("%d more links are left out, with %s new connections a second, of which %s fail, and %s "+
		"open ones: --links sets how many are shown", len(links)-len(kept), Number(without.PerSecond),
		cmp.Or(Failed(&without), "0%"), Number(without.Open))
}

// Note says what the Tally had no room for; it is empty for nothing.
func (t *Tally) Note() string {
	if t.without.Followed == 0 {
		return ""
	}
	return fmt.Sprintf("%d pairs of a client and an endpoint are counted; for more there is no room, with %s new "+
		"connections a second: choose fewer by --service, --from or --node", t.most, Number(t.without.PerSecond))
}
