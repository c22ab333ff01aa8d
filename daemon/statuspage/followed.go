package statuspage

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/html"

	"nftproxy/model/flows"
	"nftproxy/model/service"
)

// maxFollowed is the number of endpoints for which the page of a Service says how followed connections went.
const maxFollowed = 50

// followed says how the followed connections of a Service went, by endpoint. It names no client: whoever sees the page
// sees the endpoints anyway.
func (p *Page) followed(name service.Name) *html.Node {
	if p.config.Flows == nil {
		return element("div", nil)
	}
	now := time.Now()
	list, since := p.config.Flows(name)
	type place struct {
		endpoint netip.AddrPort
		port     string
	}
	places := map[place]*flows.Stats{}
	for i := range list {
		f := &list[i]
		at := place{f.Endpoint, cmp.Or(f.Port, "-") + "/" + f.Protocol}
		if places[at] == nil {
			places[at] = &flows.Stats{}
		}
		over := time.Duration(0)
		if f.Begin.After(since) {
			over = max(time.Second, now.Sub(since))
		}
		places[at].Add(f, over)
	}
	busiest := slices.SortedFunc(maps.Keys(places), func(a, b place) int {
		return cmp.Or(cmp.Compare(places[b].Failed, places[a].Failed), cmp.Compare(places[b].New, places[a].New),
			a.endpoint.Compare(b.endpoint), strings.Compare(a.port, b.port))
	})
	var rows [][]cell
	for _, at := range busiest[:min(len(busiest), maxFollowed)] {
		endpoint := "none"
		if at.endpoint.IsValid() {
			endpoint = at.endpoint.String()
		}
		rows = append(rows, append([]cell{textCell(endpoint), textCell(at.port)}, followedCells(places[at])...))
	}
	help := []*html.Node{literal("Estimated from the connections that this node follows (--nftproxy-flows), new ones "),
		literal("since "), moment(since, now), literal(". With the clients: "), plain("code", "nftproxy flows "+string(name))}
	if len(rows) == 0 {
		return section("followed", "Followed connections", plain("p", "None is remembered."),
			element("p", attributes("class", "help"), help...))
	}
	caption := "Endpoints, those with most failures first"
	if len(busiest) > len(rows) {
		caption += fmt.Sprintf(": %d of %s", len(rows), thousands(len(busiest)))
	}
	return section("followed", "Followed connections", table("cards", caption, []string{"Endpoint", "Port",
		"New connections", "Open", "Half answered within", "95 % within", "Failed", "Why"}, rows),
		element("p", attributes("class", "help"), help...))
}

func followedCells(s *flows.Stats) []cell {
	within := func(share float64) cell {
		if d, known := s.Answer(share); known {
			return numberCell(duration(d))
		}
		return textCell("-")
	}
	failed := "-"
	if s.Failed > 0 {
		failed = fmt.Sprintf("%s (%.0f %%)", thousands(int(s.Failed)), 100*s.FailedShare())
	}
	causes := s.Causes()
	return []cell{numberCell(thousands(int(s.New))), numberCell(thousands(int(s.Open))), within(0.5), within(0.95),
		numberCell(failed), textCell(strings.Join(causes[:min(len(causes), maxListed)], ", "))}
}
