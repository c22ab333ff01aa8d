package statuspage

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/html"

	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// The bounds on the page of a Service.
const (
	// maxPorts is the number of ports on a page, and maxRows that of the endpoints of all of them.
	maxPorts = 40
	maxRows  = 400
	// maxFrontends is the number of frontends of a port in one family, maxRanges that of source ranges.
	maxFrontends = 50
	maxRanges    = 20
	// maxLinks is the number of links to further ports.
	maxLinks = 500
)

func (p *Page) servicePage(q *request) *answer {
	v := p.newest.Load()
	if v == nil {
		return p.trouble(http.StatusServiceUnavailable, "No Services yet", "No sync has ended yet, so no Service is served "+
			"by this process.")
	}
	s, found := v.snapshot.Services.Get(q.service)
	if !found {
		return p.trouble(http.StatusNotFound, "No such Service", fmt.Sprintf(
			"This node serves no Service %q. Headless Services, Services of type ExternalName and Services of another service "+
				"proxy are none of nftproxy's.", cut(string(q.service), maxQuery)))
	}
	if q.port > len(s.Ports) {
		return p.trouble(http.StatusNotFound, "No such port", fmt.Sprintf("The Service %s has %s.", s.Name,
			count(len(s.Ports), "port", "ports")))
	}
	d := &detail{page: p, view: v, service: s, request: q, rows: maxRows}
	parts := []*html.Node{element("p", nil, badges(v.obstaclesOf(s))), d.reasons(), d.facts()}
	if len(s.Ports) == 0 {
		parts = append(parts, plain("p", "The Service has no ports."))
	}
	for i := range s.Ports {
		switch {
		case q.port > 0 && i != q.port-1:
		case q.port == 0 && i == maxPorts:
			parts = append(parts, d.otherPorts(i))
		case q.port > 0 || i < maxPorts:
			parts = append(parts, d.port(i))
		}
	}
	parts = append(parts, p.followed(s.Name), element("p", attributes("class", "help"),
		text("As of %s.", v.at.UTC().Format("2006-01-02 15:04:05 UTC"))))
	return &answer{code: http.StatusOK, document: p.document(fmt.Sprintf("%s – nftproxy on %s", s.Name, p.config.Node),
		"Service "+string(s.Name), parts...)}
}

type detail struct {
	page    *Page
	view    *view
	service *service.Service
	request *request
	// rows is how many more endpoints fit on the page.
	rows int
}

// reasons says why the Service does not serve as a whole.
func (d *detail) reasons() *html.Node {
	v, s := d.view, d.service
	var list []*html.Node
	if err, held := v.quarantined[string(s.Name)]; held {
		list = append(list, element("p", attributes("class", "note bad"), plain("strong", "In quarantine. "),
			literal("The kernel refused the rules of this Service, so they are left out; other Services are served. nftproxy "+
				"tries again by itself. The kernel's answer: "), literal(cut(err.Error(), maxError))))
	}
	found := v.obstaclesOf(s)
	for _, k := range obstacle.OfServices() {
		if k != obstacle.Quarantined && k != obstacle.None && found.Has(k) {
			meaning := k.Meaning()
			if held := v.held(s.Name); k == obstacle.Holding && held != "" {
				meaning += " Now " + held + "."
			}
			list = append(list, element("p", attributes("class", "note"), plain("strong", k.Label()+". "), literal(meaning)))
		}
	}
	if problems := v.problems(s.Name); len(problems) > 0 {
		items := element("ul", nil)
		for _, text := range problems {
			items.AppendChild(plain("li", cut(text, maxError)))
		}
		list = append(list, items)
	}
	for _, text := range v.snapshot.Bounds(s.Name) {
		list = append(list, element("p", attributes("class", "note"), literal(text)))
	}
	return element("div", nil, list...)
}

// facts are what holds for all ports.
func (d *detail) facts() *html.Node {
	s := d.service
	list := []fact{
		{"Cluster IPs", textCell(joined(s.ClusterIPs, maxListed))},
		{"Load balancer's addresses", listed(s.LoadBalancerIPs)},
		{"External IPs", listed(s.ExternalIPs)},
		{"internalTrafficPolicy", textCell(s.InternalPolicy.String())},
		{"externalTrafficPolicy", textCell(s.ExternalPolicy.String())},
	}
	if s.AffinityTimeout > 0 {
		list = append(list, fact{"Session affinity", textCell("ClientIP, for " + duration(s.AffinityTimeout) +
			" after the last new connection")})
	}
	if s.Sources != nil {
		ranges := joined(s.Sources.Ranges(), maxRanges)
		if ranges == "" {
			ranges = "none, so no source is admitted"
		}
		list = append(list, fact{"Sources admitted at the load balancer's addresses", textCell(ranges)})
	}
	for key, value := range s.Options.All() {
		if s.Options.SourceRanges != nil && key == "source-ranges" {
			value = cmp.Or(joined(s.Options.SourceRanges.Ranges(), maxRanges), value)
		}
		list = append(list, fact{service.OptionAnnotation(key), textCell(value)})
	}
	if s.HealthCheckNodePort != 0 {
		list = append(list, fact{"healthCheckNodePort", textCell(fmt.Sprint(s.HealthCheckNodePort))})
	}
	if !s.Created.IsZero() {
		list = append(list, fact{"Created", cell{moment(s.Created, time.Now())}})
	}
	return section("facts", "Addresses and policies", facts(list...))
}

// listed is empty for an empty list, so that the fact is left out.
func listed(addrs []netip.Addr) cell {
	if len(addrs) == 0 {
		return nil
	}
	return textCell(joined(addrs, maxRanges))
}

// otherPorts leads to ports that do not fit on the page, from number i on.
func (d *detail) otherPorts(i int) *html.Node {
	items := element("ul", attributes("class", "states"))
	end := min(len(d.service.Ports), i+maxLinks)
	for ; i < end; i++ {
		p := &d.service.Ports[i]
		items.AppendChild(element("li", nil, link(d.portURL(i, 1), fmt.Sprintf("%s/%s", p.Number(), p.Protocol))))
	}
	var rest *html.Node
	if more := len(d.service.Ports) - end; more > 0 {
		rest = plain("p", fmt.Sprintf("And %s more, which this page does not list.", count(more, "port", "ports")))
	}
	return section("other-ports", "Further ports", items, rest)
}

// portURL is the link to a page of the endpoints of port number i.
func (d *detail) portURL(i, page int) string {
	return request{service: d.service.Name, port: i + 1, page: page}.url()
}

func (d *detail) port(i int) *html.Node {
	p := &d.service.Ports[i]
	name := fmt.Sprintf("Port %s/%s", p.Number(), p.Protocol)
	if p.Name != "" {
		name += " (" + p.Name + ")"
	}
	var ways [][]cell
	more := 0
	var choices ip.PerFamily[share.Choice]
	for _, family := range families(d.service) {
		c := share.Choose(d.service, p, d.view.snapshot.Node, family)
		*choices.Of(family) = c
		frontends, others := d.frontends(p, family)
		for _, f := range frontends {
			ways = append(ways, d.frontendRow(f, p, &c))
		}
		more += others
	}
	nodes := []*html.Node{table("cards", name+": addresses", []string{"Address", "Kind", "What new connections meet",
		"Explanation"}, ways)}
	if more > 0 {
		nodes = append(nodes, plain("p", fmt.Sprintf("And %s more of the same kinds.", count(more, "address", "addresses"))))
	}
	nodes = append(nodes, d.endpoints(i, name, &choices)...)
	return section(fmt.Sprintf("port-%d", i+1), name, nodes...)
}

// endpoints is the table of a port's endpoints, as much of it as fits.
func (d *detail) endpoints(i int, name string, choices *ip.PerFamily[share.Choice]) []*html.Node {
	all := d.service.Ports[i].Endpoints
	if all.Len() == 0 {
		return []*html.Node{plain("p", "There are no endpoints.")}
	}
	size := min(pageRows, d.rows)
	skip := 0
	if d.request.port > 0 {
		size = pageRows
		skip = (min(d.request.page, pagesOf(all.Len(), size)) - 1) * size
	}
	var rows [][]cell
	n := 0
	for chunk := range all.Chunks() {
		for j := range chunk {
			if n++; n > skip && len(rows) < size {
				rows = append(rows, d.endpointRow(&chunk[j], &d.service.Ports[i], choices))
			}
		}
	}
	d.rows -= len(rows)
	var nodes []*html.Node
	if len(rows) > 0 {
		caption := fmt.Sprintf("%s: endpoints %s to %s of %s", name, thousands(skip+1), thousands(skip+len(rows)),
			thousands(all.Len()))
		nodes = append(nodes, table("cards", caption, []string{"Endpoint", "State", "Node", "New connections"}, rows))
	}
	if len(rows) < all.Len() {
		nodes = append(nodes, d.endpointPages(i, all.Len()))
	}
	return nodes
}

func pagesOf(n, size int) int { return max(1, (n+size-1)/size) }

// endpointPages leads to the pages of a port's endpoints.
func (d *detail) endpointPages(i, n int) *html.Node {
	pages := pagesOf(n, pageRows)
	if d.request.port == 0 {
		return element("p", nil, link(d.portURL(i, 1), fmt.Sprintf("All %s endpoints of this port", thousands(n))))
	}
	return pagination("Pages of endpoints", min(d.request.page, pages), pages, func(page int) string {
		return d.portURL(i, page)
	})
}

func (d *detail) endpointRow(e *service.Endpoint, p *service.Port, choices *ip.PerFamily[share.Choice]) []cell {
	node := e.Node
	switch {
	case node == "":
		node = "not known"
	case node == d.view.snapshot.Node.Name:
		node += " (this node)"
	}
	state := e.State()
	switch a := d.view.snapshot.Adjustments.At(d.service.Name).Find(p, e.Addr); {
	case a == nil:
	case e.Share == service.NoShare:
		state += ", " + a.Text()
	case e.TakesNew():
		state += ", growing " + a.Text()
	}
	if e.Nodes != "" {
		state += "; hint: for nodes " + cut(string(e.Nodes), maxQuery)
	}
	if e.Zones != "" {
		state += "; hint: for zones " + cut(string(e.Zones), maxQuery)
	}
	return []cell{textCell(e.Addr.String()), textCell(state), textCell(node),
		textCell(d.connections(e, p, choices.Of(ip.Of(e.Addr.Addr()))))}
}

func (d *detail) connections(e *service.Endpoint, p *service.Port, c *share.Choice) string {
	s, family := d.service, ip.Of(e.Addr.Addr())
	if _, held := d.view.quarantined[string(s.Name)]; held {
		return "none: the Service is in quarantine"
	}
	if !s.InFamily(family) {
		return "none: the Service has no cluster IP of this family"
	}
	cluster, local := c.Cluster.Find(e.Addr) != nil, c.Local.Find(e.Addr) != nil
	var parts []string
	if s.InternalPolicy == service.Cluster && cluster || s.InternalPolicy == service.Local && local {
		parts = append(parts, "to cluster IPs")
	}
	if s.External(p, family) {
		switch {
		case s.ExternalPolicy == service.Cluster && cluster, cluster && local,
			cluster && c.Local.Len() == 0 && s.Options.ExternalFailover == service.FailoverCluster:
			parts = append(parts, "to other addresses")
		case local:
			parts = append(parts, "to other addresses, from outside")
		case cluster:
			parts = append(parts, "to other addresses, from this node and its pods")
		}
	}
	if len(parts) == 0 {
		return "none on this node"
	}
	return strings.Join(parts, "; ")
}
