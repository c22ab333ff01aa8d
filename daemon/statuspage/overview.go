package statuspage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/html"

	"nftproxy/model/obstacle"
	"nftproxy/nft"
)

//go:embed style.css
var style string

// styleHash identifies the style for the Content-Security-Policy.
func styleHash() string {
	sum := sha256.Sum256([]byte(style))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// document makes a whole page. heading is its only h1.
func (p *Page) document(title, heading string, main ...*html.Node) *html.Node {
	doc := &html.Node{Type: html.DocumentNode}
	doc.AppendChild(&html.Node{Type: html.DoctypeNode, Data: "html"})
	doc.AppendChild(element("html", attributes("lang", "en"),
		element("head", nil,
			element("meta", attributes("charset", "utf-8")),
			element("meta", attributes("name", "viewport", "content", "width=device-width, initial-scale=1")),
			element("meta", attributes("name", "color-scheme", "content", "light dark")),
			element("link", attributes("rel", "icon", "href", "data:,")),
			plain("title", title),
			element("style", nil, &html.Node{Type: html.TextNode, Data: style})),
		element("body", nil,
			element("a", attributes("class", "skip", "href", "#main"), literal("Skip to the content")),
			element("header", nil, element("p", attributes("class", "brand"), link("?", "nftproxy"),
				text(" on %s", p.config.Node))),
			element("main", attributes("id", "main", "tabindex", "-1"), append([]*html.Node{plain("h1", heading)}, main...)...),
			element("footer", nil, p.footer()))))
	return doc
}

func (p *Page) footer() *html.Node {
	return element("p", nil, text("nftproxy %s. Made at %s from what the proxy's own syncs told. Load the page again "+
		"for newer figures. ",
		p.config.Version, time.Now().UTC().Format("15:04:05 UTC")),
		literal("The tables themselves: "), plain("code", "nft list table ip "+p.config.Table), literal("."))
}

// trouble is a page that says why there is no other.
func (p *Page) trouble(code int, heading, why string) *answer {
	return &answer{code: code, refused: heading + ": " + why, document: p.document(heading+" – nftproxy", heading,
		plain("p", why), element("p", nil, link("?", "To the overview")))}
}

func (p *Page) overview(q *request) *answer {
	now := time.Now()
	v := p.newest.Load()
	ready, readyz := p.config.Ready()
	status := p.config.Status()
	heading, class := "Ready: the rules are in force", "good"
	switch {
	case !ready:
		heading, class = "Not ready: the rules have not been in force yet", "bad"
	case !status.Healthy:
		heading, class = "Unhealthy: changes do not reach the kernel", "bad"
	case v != nil && v.failures[0]+v.failures[1] != "":
		heading, class = "Ready, but the newest rules are not in force", "warn"
	}
	list := p.list(q, v)
	title := fmt.Sprintf("%s – nftproxy on %s", heading, p.config.Node)
	var alert *html.Node
	if list != nil && list.counts[obstacle.Quarantined] > 0 {
		n, all := list.counts[obstacle.Quarantined], request{state: obstacle.Quarantined.String()}
		title = count(n, "Service", "Services") + " in quarantine – " + title
		alert = element("p", attributes("class", "note bad alert"), link(all.url()+"#services",
			count(n, "Service is", "Services are")+" in quarantine: the kernel refused the rules"))
	}
	parts := []*html.Node{p.health(v, readyz, class, now), p.syncs(now)}
	if list == nil {
		parts = append(parts, section("services", "Services",
			plain("p", "No sync has ended yet, so no Service is served by this process.")))
	} else {
		parts = append(parts, section("services", "Services", list.nodes()...))
	}
	if len(q.words) > 0 || q.state != "" || q.page > 1 { // The list is asked for.
		parts = []*html.Node{parts[2], parts[0], parts[1]}
	}
	return &answer{code: http.StatusOK, document: p.document(title, heading, append([]*html.Node{alert}, parts...)...)}
}

// section is a part of the page with a heading, by which screen readers list it.
func section(id, heading string, content ...*html.Node) *html.Node {
	h := element("h2", attributes("id", id), literal(heading))
	return element("section", attributes("aria-labelledby", id), append([]*html.Node{h}, content...)...)
}

// health tells what /readyz, /livez and /healthz tell, and about the process.
func (p *Page) health(v *view, readyz, class string, now time.Time) *html.Node {
	status := p.config.Status()
	live := "yes"
	if !status.Healthy {
		live = "no: a change has not been in force for too long"
	}
	list := []fact{
		{"/readyz", cell{plain("pre", readyz)}},
		{"Live", textCell(live)},
	}
	for i, f := range nft.Families() {
		name := f.Name()
		state := cell{literal("in force, last written or confirmed "), moment(status.Status[name].LastUpdated, now)}
		switch {
		case v == nil:
			state = textCell("no sync has ended yet")
		case v.failures[i] != "":
			state = cell{literal("not in force: " + v.failures[i])}
		}
		list = append(list, fact{fmt.Sprintf("Rules for %s (table %s %s)", name, f, p.config.Table), state})
	}
	list = append(list,
		fact{"Version", textCell(p.config.Version)},
		fact{"Node", textCell(p.config.Node)},
		fact{"Running since", cell{moment(p.config.Started, now)}})
	if v != nil {
		if zone := v.snapshot.Node.Zone; zone != "" {
			list = append(list, fact{"Zone", textCell(zone)})
		}
		list = append(list, fact{"Node's addresses", textCell(joined(v.snapshot.Node.Addresses, maxListed))})
	}
	return element("div", attributes("class", "health "+class), section("health", "Health", facts(list...)))
}

// joined lists at most so many items, and says how many more there are.
func joined[T fmt.Stringer](list []T, limit int) string {
	var parts []string
	for _, item := range list[:min(limit, len(list))] {
		parts = append(parts, item.String())
	}
	s := strings.Join(parts, ", ")
	if more := len(list) - limit; more > 0 {
		s += fmt.Sprintf(" and %s more", thousands(more))
	}
	return s
}

// syncs shows the last syncs as a picture, and the same as a table.
func (p *Page) syncs(now time.Time) *html.Node {
	list, total := p.history.last()
	if len(list) == 0 {
		return section("syncs", "Syncs", plain("p", describe(nil)))
	}
	summary := describe(list) + fmt.Sprintf(" %s since the start. The latency is the time from the arrival of a change "+
		"until it was in force. Where nothing had changed, it is the time that the sync took.",
		count(total, "sync", "syncs"))
	rows := make([][]cell, 0, len(list))
	for _, r := range slices.Backward(list) {
		latency := "no change"
		if r.latency > 0 {
			latency = duration(r.latency)
		}
		outcome := r.outcome()
		if r.err != "" {
			outcome += ": " + r.err
		}
		rows = append(rows, []cell{
			{element("time", attributes("datetime", r.start.UTC().Format(time.RFC3339Nano)),
				literal(r.start.UTC().Format("15:04:05.000")))},
			numberCell(latency), numberCell(duration(r.compile)), numberCell(duration(r.read)), numberCell(duration(r.plan)),
			numberCell(duration(r.apply)),
			numberCell(thousands(r.written)), textCell(outcome),
		})
	}
	asTable := table("cards", "The last syncs, the newest first (times in UTC)", []string{"Start", "Latency", "Compile",
		"Read", "Plan", "Apply", "Written", "Outcome"}, rows)
	return section("syncs", "Syncs",
		element("figure", nil, chart(list, now), plain("figcaption", summary)),
		element("details", nil, plain("summary", "The syncs as a table"), asTable))
}
