package statuspage

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/html"

	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// The bounds on one page.
const (
	// pageRows is the number of Services on a page.
	pageRows = 100
	// maxListed is the number of addresses or ports of one Service in a line.
	maxListed = 4
)

// list is the list of Services on a page.
type list struct {
	page    *Page
	request *request
	view    *view
	// counts counts all Services by their worst obstacle, matched those that match the search.
	counts, matched [obstacle.None + 1]int
	// others are the parts in quarantine that belong to no Service of the snapshot.
	others []string
	// rows are the Services of the page.
	rows []*service.Service
	// found is the number of Services in the list, on all pages.
	found int
}

// list looks through all Services. It is nil before the first sync. It costs what the
// Services and their endpoints are, and keeps the pointers of the Services that match.
func (p *Page) list(q *request, v *view) *list {
	if v == nil {
		return nil
	}
	q.findNode(v.snapshot.Node)
	l := &list{page: p, request: q, view: v}
	var byKind [obstacle.None + 1][]*service.Service
	for _, s := range v.snapshot.Services.All() {
		worst := v.obstaclesOf(s).Worst()
		l.counts[worst]++
		if !q.matches(s) {
			continue
		}
		l.matched[worst]++
		if q.state == "" || q.state == worst.String() {
			byKind[worst] = append(byKind[worst], s)
			l.found++
		}
	}
	skip := (min(q.page, l.pages()) - 1) * pageRows
	for _, group := range byKind {
		from := min(skip, len(group))
		skip -= from
		l.rows = append(l.rows, group[from:min(len(group), from+pageRows-len(l.rows))]...)
	}
	l.others = v.otherParts()
	return l
}

func (l *list) pages() int { return pagesOf(l.found, pageRows) }

// nodes is the content of the section of Services.
func (l *list) nodes() []*html.Node {
	q := l.request
	total := l.view.snapshot.Services.Len()
	nodes := []*html.Node{l.overviewOfStates(total), l.form(),
		element("p", nil, link(request{draining: true}.url(), "Draining endpoints and their connections"),
			literal(": this looks at connection tracking, which costs the node some CPU time."))}
	if len(l.others) > 0 {
		items := element("ul", nil)
		for _, name := range l.others {
			items.AppendChild(element("li", nil, plain("strong", name),
				literal(": "+cut(l.view.quarantined[name].Error(), maxError))))
		}
		nodes = append(nodes, plain("p", "In quarantine beside Services, since the kernel refuses them:"), items)
	}
	what := "All Services, those with trouble first"
	if kind, ok := kindOf(q.state); ok {
		what = "Services in the state “" + kind.Label() + "”"
	}
	if len(q.words) > 0 {
		what += ", that match “" + q.search + "”"
	}
	if l.found == 0 {
		return append(nodes, plain("p", what+": none."))
	}
	page := min(q.page, l.pages())
	first := (page-1)*pageRows + 1
	caption := fmt.Sprintf("%s: %s to %s of %s", what, thousands(first), thousands(first+len(l.rows)-1),
		thousands(l.found))
	rows := make([][]cell, 0, len(l.rows))
	for _, s := range l.rows {
		rows = append(rows, l.row(s))
	}
	nodes = append(nodes, table("cards services", caption, []string{"Service", "State", "Addresses", "Ports and endpoints",
		"Explanation"}, rows))
	return append(nodes, pagination("Pages of Services", page, l.pages(), func(n int) string {
		other := *q
		other.page = n
		return other.url() + "#services"
	}))
}

// overviewOfStates has a link for each state that some Service is in.
func (l *list) overviewOfStates(total int) *html.Node {
	items := element("ul", attributes("class", "states"))
	for kind, n := range l.counts {
		if n == 0 {
			continue
		}
		k := obstacle.Kind(kind)
		q := request{state: k.String(), search: l.request.search}
		attr := attributes("href", q.url()+"#services", "class", "state "+q.state, "title", k.Meaning())
		if l.request.state == q.state {
			attr = append(attr, attributes("aria-current", "true")...)
		}
		label := fmt.Sprintf("%s: %s", k.Label(), thousands(n))
		if len(l.request.words) > 0 {
			label = fmt.Sprintf("%s: %s of %s", k.Label(), thousands(l.matched[kind]), thousands(n))
		}
		items.AppendChild(element("li", nil, element("a", attr, literal(label))))
	}
	all := request{search: l.request.search}
	return element("nav", attributes("aria-label", "Services by state"),
		element("p", nil, link(all.url()+"#services", count(total, "Service", "Services")),
			text(" at %s:", l.view.at.UTC().Format("15:04:05 UTC"))), items)
}

// form is the search.
func (l *list) form() *html.Node {
	form := element("form", attributes("method", "get", "role", "search"),
		element("label", attributes("for", "q"), literal("Search by name, address or port")),
		element("div", attributes("class", "field"),
			input("search", "q", l.request.search),
			element("button", attributes("type", "submit"), literal("Search"))),
		element("p", attributes("id", "q-help", "class", "help"),
			literal("Words such as "), plain("code", "kube-system/dns"), literal(", "), plain("code", "10.96.0.10"),
			literal(", "),
			plain("code", "10.244.0.0/24"), literal(", "), plain("code", "53/udp"), literal(" or "),
			plain("code", "10.96.0.10:53"),
			literal(". A Service has to match all of them, itself or by an endpoint.")))
	if l.request.state != "" {
		form.AppendChild(element("input", attributes("type", "hidden", "name", "state", "value", l.request.state)))
	}
	return form
}

func (l *list) row(s *service.Service) []cell {
	return []cell{
		{link(serviceURL(s.Name), string(s.Name))},
		l.states(s),
		textCell(joined(s.Addresses(), maxListed)),
		{l.view.portSummary(s)},
		{explanationOf(s)},
	}
}

// states has the obstacles of a Service, and how many of its connections are held.
func (l *list) states(s *service.Service) cell {
	found := l.view.obstaclesOf(s)
	content := cell{badges(found)}
	if held := l.view.held(s.Name); found.Has(obstacle.Holding) && held != "" {
		content = append(content, literal(" "+held))
	}
	return content
}

func badges(found obstacle.Set) *html.Node {
	list := element("span", attributes("class", "badges"))
	for _, k := range obstacle.OfServices() {
		if found.Has(k) {
			if list.FirstChild != nil {
				list.AppendChild(literal(" "))
			}
			list.AppendChild(element("span", attributes("class", "state "+k.String(), "title", k.Meaning()),
				literal(k.Label())))
		}
	}
	return list
}

// portSummary has a line for each of the first ports.
func (v *view) portSummary(s *service.Service) *html.Node {
	lines := element("ul", attributes("class", "lines"))
	for i := range s.Ports[:min(maxListed, len(s.Ports))] {
		p := &s.Ports[i]
		ready, draining := 0, 0
		for _, family := range families(s) {
			n := share.Count(s, p, v.snapshot.Node, family)
			ready, draining = ready+n.Ready, draining+n.Draining
		}
		var parts []string
		parts = append(parts, fmt.Sprintf("%s/%s: %s ready", p.Number(), p.Protocol, thousands(ready)))
		if draining > 0 {
			parts = append(parts, fmt.Sprintf("%s draining", thousands(draining)))
		}
		if all := p.Endpoints.Len(); all != ready+draining {
			parts = append(parts, fmt.Sprintf("of %s", thousands(all)))
		}
		lines.AppendChild(plain("li", strings.Join(parts, ", ")))
	}
	if more := len(s.Ports) - maxListed; more > 0 {
		lines.AppendChild(plain("li", fmt.Sprintf("and %s more", count(more, "port", "ports"))))
	}
	return lines
}

// pagination leads to the other pages of a list; it is nil if there are none.
func pagination(label string, page, pages int, at func(page int) string) *html.Node {
	if pages == 1 {
		return nil
	}
	items := element("ul", nil)
	add := func(n int, label string) {
		items.AppendChild(element("li", nil, link(at(n), label)))
	}
	if page > 1 {
		add(1, "First page")
		add(page-1, "Previous page")
	}
	items.AppendChild(element("li", nil, element("span", attributes("aria-current", "page"),
		text("Page %s of %s", thousands(page), thousands(pages)))))
	if page < pages {
		add(page+1, "Next page")
		add(pages, "Last page")
	}
	return element("nav", attributes("aria-label", label, "class", "pages"), items)
}

// otherParts lists the parts in quarantine that are no Service of the snapshot, sorted.
func (v *view) otherParts() []string {
	var names []string
	for name := range v.quarantined {
		if _, is := v.snapshot.Services.Get(service.Name(name)); !is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(pageRows, len(names))]
}
