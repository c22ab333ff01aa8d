package flowmap_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/cmd/kubectl-nftproxy/flowmap"
	"nftproxy/model/flows"
	"nftproxy/model/service"
)

func init() { flag.Bool("update", false, "write the goldens") }

func updating() bool { return flag.Lookup("update").Value.String() == "true" }

// now is when the nodes answer.
func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// conn is a flow in few words: ago is when it began.
type conn struct {
	client, service, endpoint string
	result                    flows.Result
	cause                     string
	answer, ago               time.Duration
	open                      bool
	bytes                     uint64
	weight                    int
}

func (c *conn) flow() flows.Flow {
	f := flows.Flow{Begin: now().Add(-c.ago), Protocol: "TCP", Client: netip.MustParseAddrPort(c.client + ":40000"),
		Service: service.Name(c.service), Port: "http", Way: flows.ByClusterIP,
		Address: netip.MustParseAddrPort("10.96.0.1:80"),
		Result:  c.result, Cause: c.cause, Ended: !c.open, BytesFrom: c.bytes, BytesTo: 10 * c.bytes, Weight: c.weight}
	if c.endpoint != "" {
		f.Endpoint = netip.MustParseAddrPort(c.endpoint + ":8080")
	}
	if c.answer > 0 {
		f.AnswerSeconds = new(c.answer.Seconds())
	}
	return f
}

// answer is what a node says.
func answer(node string, since time.Duration, conns ...conn) *flowmap.Answer {
	a := &flowmap.Answer{Node: node, Time: now(), Since: now().Add(-since)}
	for i := range conns {
		a.Flows = append(a.Flows, conns[i].flow())
	}
	return a
}

func times(n int, c conn) (list []conn) {
	for range n {
		list = append(list, c)
	}
	return list
}

func all(*flows.Flow) bool { return true }

func shopNames(a netip.Addr) flowmap.Party {
	deployment := func(name string) flowmap.Party {
		return flowmap.Party{Kind: "deployment", Namespace: "shop", Name: name}
	}
	return map[string]flowmap.Party{
		"10.244.1.1": deployment("web"), "10.244.2.1": deployment("web"),
		"10.244.1.2": {Kind: "cronjob", Namespace: "shop", Name: "report"},
		"10.244.1.3": deployment("cart"), "10.244.2.3": deployment("cart"),
		"10.244.2.4":   {Kind: "statefulset", Namespace: "shop", Name: "stock"},
		"192.168.0.10": {Kind: "node", Name: "worker-1"},
	}[a.String()]
}

// shop has three clients and three Services: one answers slowly, and one refuses some. A workload is a client and an
// endpoint. Of a Service without endpoints there is no arrow on.
func shop() *flowmap.Tally {
	const m = time.Minute
	t := flowmap.NewTally(5*m, all)
	web := conn{client: "10.244.1.1", service: "shop/cart", endpoint: "10.244.2.3", result: flows.Answered,
		answer: 400 * time.Microsecond, ago: m, bytes: 1000, weight: 16}
	web2 := web
	web2.client, web2.endpoint, web2.answer = "10.244.2.1", "10.244.1.3", 800*time.Microsecond
	cart := conn{client: "10.244.1.3", service: "shop/stock", endpoint: "10.244.2.4", result: flows.Answered,
		answer: 240 * time.Millisecond, ago: m, bytes: 100, weight: 16}
	refused := web
	refused.result, refused.answer = flows.Refused, 0
	report := conn{client: "10.244.1.2", service: "shop/old", result: flows.Refused, cause: "no-endpoints", ago: 2 * m,
		weight: 16}
	outside := conn{client: "203.0.113.7", service: "shop/cart", endpoint: "10.244.1.3", result: flows.Answered,
		answer: 30 * time.Millisecond, ago: m, bytes: 50, weight: 16}
	long := conn{client: "192.168.0.10", service: "shop/stock", endpoint: "10.244.2.4", result: flows.Answered,
		answer: time.Millisecond, ago: 10 * time.Hour, open: true, bytes: 1_000_000, weight: 16}
	t.Add(answer("worker-1", time.Hour, slices.Concat(times(40, web), times(2, refused), times(20, cart),
		[]conn{report, outside, long})...))
	t.Add(answer("worker-2", time.Hour, append(times(60, web2), outside)...))
	return t
}

// hostile has names that would break out of each language, if they were not escaped.
func hostile() *flowmap.Picture {
	names := func(a netip.Addr) flowmap.Party {
		return map[string]flowmap.Party{
			"10.0.0.1": {Kind: "deployment", Namespace: "x", Name: `"]; evil [label="`},
			"10.0.0.2": {Kind: "pod", Namespace: "x", Name: `</title><script>alert(1)</script>&#27;`},
			"10.0.0.3": {Kind: "pod", Namespace: "x", Name: "\x1b[2J\u202eback\\N\\l\nline"},
			"10.0.0.4": {Kind: "pod", Namespace: "x", Name: strings.Repeat("long", 40)},
		}[a.String()]
	}
	t := flowmap.NewTally(time.Minute, all)
	var list []conn
	for _, client := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		list = append(list, conn{client: client, service: `x/<b>"\N`, endpoint: "10.0.0.3", result: flows.Dropped,
			cause: "]]>--\x07", ago: time.Second, weight: 1})
	}
	t.Add(answer("n", time.Hour, list...))
	return &flowmap.Picture{Title: "\x1b]0;title\x07</title>", Links: t.Links(names),
		Notes: []string{`worker"<1>: no ]]> answer`}}
}

// TestGoldens holds the drawings to files that people can look at.
func TestGoldens(t *testing.T) {
	links := shop().Links(shopNames)
	picture := &flowmap.Picture{Links: links, Notes: []string{"worker-3: no answer within 15s"},
		Title: "Connections to Services of namespace shop within 5m0s, by 2 of 3 nodes"}
	for _, c := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{"shop.dot", picture.WriteDOT}, {"shop.svg", picture.WriteSVG},
		{"hostile.dot", hostile().WriteDOT}, {"hostile.svg", hostile().WriteSVG},
		{"nothing.svg", (&flowmap.Picture{Title: "Nothing"}).WriteSVG},
	} {
		var b bytes.Buffer
		if err := c.write(&b); err != nil {
			t.Fatal(err)
		}
		path := "testdata/" + c.name
		if updating() {
			if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(string(want), b.String()); diff != "" {
			t.Errorf("%s (-update writes it; -want +got):\n%s", path, diff)
		}
	}
}

// TestHostileSVG: names of tenants add no element, attribute or control character to the picture.
func TestHostileSVG(t *testing.T) {
	var b bytes.Buffer
	if err := hostile().WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{"svg": true, "title": true, "rect": true, "g": true, "text": true, "path": true}
	elements, texts := 0, ""
	for d := xml.NewDecoder(bytes.NewReader(b.Bytes())); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("it is no XML: %v\n%s", err, b.String())
		}
		switch e := token.(type) {
		case xml.StartElement:
			if elements++; !allowed[e.Name.Local] {
				t.Errorf("it has the element %s", e.Name.Local)
			}
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Value, "evil") {
					t.Errorf("it has the attribute %s=%q", a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			texts += string(e)
		}
	}
	if elements < 20 || !strings.Contains(texts, "</title><script>") {
		t.Errorf("%d elements, and the names are not in the texts: %s", elements, texts)
	}
	if i := strings.IndexFunc(b.String(), func(r rune) bool { return r < ' ' && r != '\n' || r == '\u202e' }); i >= 0 {
		t.Errorf("it has the character %q", b.String()[i])
	}
}

// TestHostileDOT: each name is within quotes, where nothing ends them nor means anything to Graphviz.
func TestHostileDOT(t *testing.T) {
	var b bytes.Buffer
	if err := hostile().WriteDOT(&b); err != nil {
		t.Fatal(err)
	}
	quoted, outside := false, strings.Builder{}
	text := b.String()
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			if i++; !strings.ContainsRune(`\"n`, rune(text[i])) {
				t.Errorf("it has the escape \\%c", text[i])
			}
		case c == '"':
			quoted = !quoted
		case !quoted:
			outside.WriteByte(c)
		case c == '<' || c == '>' || c < ' ' || c == '&' && !strings.HasPrefix(text[i:], "&amp;") &&
			!strings.HasPrefix(text[i:], "&lt;") && !strings.HasPrefix(text[i:], "&gt;"):
			t.Errorf("it has %q within quotes", c)
		}
	}
	if quoted || strings.Contains(outside.String(), "evil") || strings.Count(outside.String(), "->") != 5 {
		t.Errorf("outside of quotes it has:\n%s", outside.String())
	}
}
