package statuspage

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/html"

	"nftproxy/look/explain"
	"nftproxy/model/pace"
	"nftproxy/nft/ruleset"
)

// The bounds on explanations.
const (
	// explainShare is the part of a core that explanations get in the long run, as one in
	// so many, and explainBurst what they may take at once.
	explainShare = 50
	explainBurst = 2 * time.Second
	// explainTimeout ends an explanation.
	explainTimeout = 20 * time.Second
	// maxExplained is the number of elements up to which the daemon reads its tables for an
	// explanation. Beyond it the memory for them would be more than the daemon's own.
	maxExplained = 200_000
	// maxSteps bounds each list of an explanation.
	maxSteps = 100
)

func (p *Page) explanationPage(ctx context.Context, q *request, budget *pace.Budget) *answer {
	now := time.Now()
	command := p.explainCommand(q.explain)
	if wait := budget.Ready().Sub(now); wait > 0 {
		a := p.trouble(http.StatusTooManyRequests, "Asked too often", fmt.Sprintf(
			"An explanation reads the kernel's tables. Explanations on this page have used up their share of the processor "+
				"(1/%d of a core). Ask again in %s, or run on the node: %s",
			explainShare, duration(wait.Round(time.Second)+time.Second), command))
		a.retryAfter = wait
		return a
	}
	defer func() { budget.Spend(time.Now(), time.Since(now)) }() // However it ends.
	v := p.newest.Load()
	if v == nil {
		return p.trouble(http.StatusServiceUnavailable, "No explanation yet", "No sync has ended yet.")
	}
	if n := v.elements(); n > maxExplained {
		return p.trouble(http.StatusServiceUnavailable, "Too large to explain here", fmt.Sprintf(
			"The tables have %s elements. The daemon reads no more than %s for a page, to save memory. Run on the node: %s",
			thousands(n), thousands(maxExplained), command))
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	e, err := p.config.Explain(ctx, q.from, q.explain, &v.snapshot)
	if err != nil {
		return p.trouble(http.StatusUnprocessableEntity, "Cannot explain that", err.Error()+".")
	}
	to := strings.TrimSuffix(e.Packet.Destination, "/"+e.Packet.Protocol) + "/" + e.Packet.Protocol
	parts := []*html.Node{
		element("p", attributes("class", "note"), plain("strong", string(e.Outcome)+": "), literal(e.Summary+".")),
		p.questionFacts(&e), p.clientForm(q), endpointsOf(&e),
		textList("why", "Why", e.Causes),
		textList("problems", "What cannot be used of the Service's objects", e.Problems), textList("remedies", "What to do",
			e.Remedies),
		stepList("steps", "Steps on the most likely way", e.Steps),
	}
	for i, o := range e.Otherwise[:min(len(e.Otherwise), maxListed)] {
		parts = append(parts, stepList(fmt.Sprintf("otherwise-%d", i+1), "Otherwise, with a chance of "+percent(o.Chance),
			o.Steps))
	}
	var others []string
	for _, o := range e.Others {
		others = append(others, o.Says)
	}
	parts = append(parts, textList("others", "Chains of other programs on the way, which may drop or change it", others),
		textList("notes", "Notes", e.Notes), textList("assumed", "Assumed", e.Assumed),
		element("p", nil, literal("The same as text: "), plain("code", command)))
	return &answer{code: http.StatusOK, document: p.document("Explanation of "+to+" – nftproxy on "+p.config.Node,
		"What the rules do with a packet to "+to, parts...)}
}

func (p *Page) questionFacts(e *explain.Explanation) *html.Node {
	from := e.Packet.Source
	if e.Packet.From != "" {
		from += " (" + e.Packet.From + ")"
	}
	if e.Packet.Interface != "" {
		from += ", by " + e.Packet.Interface
	}
	list := []fact{{"Client", textCell(from)}}
	if e.Service != "" {
		list = append(list, fact{"Service", textCell(strings.TrimSuffix(e.Service+":"+e.Port, ":"))})
	}
	if a := e.Affinity; a != nil {
		list = append(list, fact{"Remembered", textCell(fmt.Sprintf("the client keeps %s for %s", a.Endpoint,
			duration(time.Duration(a.ExpiresSeconds)*time.Second)))})
	}
	return section("packet", "The first packet of a connection", facts(list...))
}

func (p *Page) clientForm(q *request) *html.Node {
	return element("form", attributes("method", "get"),
		element("label", attributes("for", "from"), literal("Another client")),
		element("div", attributes("class", "field"),
			input("text", "from", q.from.String()),
			element("input", attributes("type", "hidden", "name", "explain", "value", q.explain.String())),
			element("button", attributes("type", "submit"), literal("Explain"))),
		element("p", attributes("id", "from-help", "class", "help"), literal("An address, such as "),
			plain("code", "10.244.1.5"), literal(", an address with the interface by which its packets come, such as "),
			plain("code", "203.0.113.9@eth0"), literal(", or "), plain("code", "node"),
			literal(" for a process of the node. Without one, a likely client is chosen.")))
}

func endpointsOf(e *explain.Explanation) *html.Node {
	if len(e.Endpoints) == 0 {
		return nil
	}
	var rows [][]cell
	for i := range e.Endpoints[:min(len(e.Endpoints), maxSteps)] {
		t := &e.Endpoints[i]
		source := "source address kept"
		if t.Masqueraded {
			source = "masqueraded " + t.MasqueradedBy
		}
		rows = append(rows, []cell{textCell(t.Address), numberCell(percent(t.Chance)), textCell(source), textCell(t.Way),
			textCell(t.About)})
	}
	return section("endpoints", "Endpoints", table("cards", fmt.Sprintf("%s of %s", thousands(len(rows)),
		count(len(e.Endpoints), "endpoint", "endpoints")),
		[]string{"Endpoint", "Chance", "Source address", "Way", "About"}, rows))
}

func textList(id, heading string, list []string) *html.Node {
	if len(list) == 0 {
		return nil
	}
	items := element("ul", nil)
	for _, s := range list[:min(len(list), maxSteps)] {
		items.AppendChild(plain("li", s))
	}
	return section(id, heading, items)
}

func stepList(id, heading string, steps []explain.Step) *html.Node {
	if len(steps) == 0 {
		return nil
	}
	var rows [][]cell
	for i := range steps[:min(len(steps), maxSteps)] {
		s := &steps[i]
		rows = append(rows, []cell{
			textCell(fmt.Sprintf("%s, rule %d", s.Chain, s.Number)), textCell(s.Says),
			{element("span", nil, plain("code", cut(s.Rule, maxError)),
				literal(" "+cut(strings.Join(s.Elements, ", "), maxError)))},
		})
	}
	return section(id, heading, table("cards", "Rules that the packet meets, in their order",
		[]string{"Rule", "What it does", "Text"}, rows))
}

func percent(chance float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*chance), ".0") + " %"
}

// explainCommand is the command that explains the destination. A reader copies it into a root shell.
func (p *Page) explainCommand(to explain.Destination) string {
	destination := to.String()
	table := ""
	if p.config.Table != ruleset.DefaultTable {
		table = "--nftproxy-table " + p.config.Table + " "
	}
	if strings.HasPrefix(destination, "[") { // for a shell
		destination = "'" + destination + "'"
	}
	return "nftproxy explain " + table + destination
}
