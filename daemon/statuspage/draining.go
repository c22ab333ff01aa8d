package statuspage

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/html"

	"nftproxy/look/inspect"
	"nftproxy/model/ip"
	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// The bounds on looks at connection tracking.
const (
	// lookShare is the part of a core that looks get in the long run, as one in so many.
	lookShare = 100
	// lookPeriod is the least time from one look to the next.
	lookPeriod = 10 * time.Second
	// lookTimeout ends a look at a table that is too large or too busy.
	lookTimeout = 20 * time.Second
	// maxDraining is the number of endpoints that are kept of a look.
	maxDraining = 200
)

// look is the last look at connection tracking. Only the request whose turn it is uses it.
type look struct {
	budget pace.Budget
	// at is when the look ended, zero before the first one; took is the time it needed.
	at   time.Time
	took time.Duration
	// err is why it found nothing, or not all.
	err error
	// draining has the endpoints with the most connections. found is the number of all, and connections that of theirs.
	draining           []inspect.DrainingEndpoint
	found, connections int
}

// next is the time of the next look. The zero time means at once.
func (l *look) next() time.Time {
	if l.at.IsZero() {
		return time.Time{}
	}
	return pace.Later(l.at.Add(lookPeriod), l.budget.Ready())
}

func (p *Page) lookAgain(ctx context.Context, v *view) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	begun := time.Now()
	l := &p.look
	defer func() { // However it ends.
		l.at = time.Now()
		l.took = l.at.Sub(begun)
		l.budget.Spend(l.at, l.took)
	}()
	connections, err := p.config.Connections(ctx, v.snapshot)
	l.err, l.draining, l.found, l.connections = err, nil, 0, 0
	if connections != nil {
		list := connections.Draining(v.activity())
		for i := range list {
			l.connections += list[i].Connections
		}
		slices.SortStableFunc(list, func(a, b inspect.DrainingEndpoint) int {
			return cmp.Compare(b.Connections, a.Connections)
		})
		l.found, l.draining = len(list), slices.Clone(list[:min(len(list), maxDraining)])
	}
}

// activity returns a function that says whether an endpoint gets new connections of a
// Service port on this node. Calls about one port after the other cost least.
func (v *view) activity() func(service.Name, service.Port, netip.AddrPort) bool {
	type choosing struct {
		service  service.Name
		name     string
		protocol service.Protocol
		family   ip.Family
	}
	var last choosing
	var choice share.Choice
	return func(name service.Name, like service.Port, endpoint netip.AddrPort) bool {
		asked := choosing{name, like.Name, like.Protocol, ip.Of(endpoint.Addr())}
		if asked != last {
			last, choice = asked, share.Choice{}
			if s := v.snapshot.Services.At(name); s != nil && s.InFamily(asked.family) {
				if i := slices.IndexFunc(s.Ports, func(p service.Port) bool {
					return (p.Name == like.Name && !p.IsRange() || p.IsRange() && like.Port == 0 && like.Name == service.RangesText) &&
						p.Protocol == like.Protocol
				}); i >= 0 {
					choice = share.Choose(s, &s.Ports[i], v.snapshot.Node, asked.family)
				}
			}
		}
		return choice.Cluster.Find(endpoint) != nil || choice.Local.Find(endpoint) != nil
	}
}

func (p *Page) drainingPage(ctx context.Context) *answer {
	v := p.newest.Load()
	if v == nil {
		return p.trouble(http.StatusServiceUnavailable, "No connections to show", "No sync has ended yet, so the proxy "+
			"does not know whose the connections are.")
	}
	now := time.Now()
	fresh := !p.look.next().After(now)
	if fresh {
		p.lookAgain(ctx, v)
		now = time.Now()
	}
	l := &p.look
	about := fmt.Sprintf("A look at connection tracking, which took %s. ", duration(l.took))
	if !fresh {
		about += "A look costs the node CPU time, so they are rationed, and this one is shown again. "
	}
	about += fmt.Sprintf("The next look is possible in %s.", duration(max(0, l.next().Sub(now))))
	parts := []*html.Node{
		plain("p", "These endpoints get no new connections of their Service port on this node, since they terminate, are "+
			"not ready, have gone, or are not chosen here. But they still have connections or UDP flows."),
		element("p", attributes("class", "help"), literal("As of "), moment(l.at, now), literal(". "+about)),
	}
	if l.err != nil {
		parts = append(parts, element("p", attributes("class", "note bad"),
			literal("Connections may be missing: "+cut(l.err.Error(), maxError))))
	}
	if l.found == 0 {
		parts = append(parts, plain("p", "No such endpoint has connections."))
	} else {
		parts = append(parts, l.table())
	}
	parts = append(parts, element("p", nil, literal("The same as text: "),
		plain("code", "nftproxy get endpoints --draining")))
	return &answer{code: http.StatusOK, document: p.document("Draining endpoints – nftproxy on "+p.config.Node,
		"Draining endpoints", parts...)}
}

func (l *look) table() *html.Node {
	var rows [][]cell
	for i := range l.draining {
		d := &l.draining[i]
		rows = append(rows, []cell{
			textCell(d.Endpoint.String()), {link(serviceURL(d.Service), string(d.Service))},
			textCell(inspect.PortText(d.Port.Name, d.Port.Protocol.String(), d.Port.Port)),
			numberCell(thousands(d.Connections)), numberCell(thousands(d.Closing)),
		})
	}
	caption := fmt.Sprintf("%s with %s", count(l.found, "endpoint", "endpoints"), count(l.connections, "connection",
		"connections"))
	if l.found > len(l.draining) {
		caption += fmt.Sprintf("; the %d with the most connections", len(l.draining))
	}
	return table("cards", caption, []string{"Endpoint", "Service", "Port", "Connections", "Closing"}, rows)
}
