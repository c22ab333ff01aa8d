// Package browser holds the tests of the status page in a real browser: Debian's Chromium,
// driven by its own protocol. `make test-page` runs them. They need root for the
// installation of Chromium where it is missing, and npm for axe-core.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"nftproxy/daemon/statuspage"
	"nftproxy/test/gen/statuspagetest"
	"nftproxy/test/lib/aptget"
)

// patience bounds one test; a busy computer needs much of it.
const patience = 25 * time.Minute

// browser is a tab of Chromium that notes what it asks for and complains about.
type browser struct {
	ctx context.Context

	mu                   sync.Mutex
	requests, complaints []string
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := aptget.Command("chromium", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(2*time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{ctx: ctx}
	if err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			b.requests = append(b.requests, e.Request.URL)
		case *log.EventEntryAdded:
			b.complaints = append(b.complaints, e.Entry.Text)
		}
	}); err != nil {
		t.Fatal(err)
	}
	call(t, b, network.Enable, network.EnableParams{})
	call(t, b, log.Enable, cdp.Empty{})
	return b
}

func (b *browser) do(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// call sends a command of the protocol.
func call[P, R any](t *testing.T, b *browser, command cdp.Command[P, R], params P) R {
	t.Helper()
	result, err := chromedp.Call(b.ctx, command, params)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// evaluate returns the value of an expression in the page.
func evaluate[T any](t *testing.T, b *browser, expression string) T {
	t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// look sets the size and colours of the screen.
func (b *browser) look(t *testing.T, width, height int64, scheme string) {
	t.Helper()
	call(t, b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height,
		DeviceScaleFactor: 1, Mobile: width < 600})
	call(t, b, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// open loads a page.
func (b *browser) open(t *testing.T, url string) {
	t.Helper()
	b.do(t, chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS("main")))
}

// serve serves a page that has had the syncs.
func serve(t *testing.T, page *statuspage.Page) string {
	t.Helper()
	server := httptest.NewServer(page)
	t.Cleanup(server.Close)
	return server.URL + statuspage.Path
}

// sample serves a page with a Service of each state, and with many further Services.
func sample(t *testing.T, more int) string {
	t.Helper()
	cluster := statuspagetest.Cluster()
	statuspagetest.Many(cluster, more)
	page := statuspagetest.New()
	for _, s := range statuspagetest.Syncs(cluster.Snapshot()) {
		page.Observe(s)
	}
	return serve(t, page)
}

// violation is what axe-core finds fault with.
type violation struct {
	ID, Impact, Help string
	Nodes            []struct {
		HTML           string
		FailureSummary string
	}
}

// axe runs axe-core in the page, with all its rules.
func (b *browser) axe(t *testing.T) []violation {
	t.Helper()
	script, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Fatalf("%v: npm --prefix hack/browser ci", err)
	}
	var list []violation
	evaluate[int](t, b, string(script)+"; 0")
	result := evaluate[string](t, b, "axe.run().then(r => JSON.stringify(r.violations))")
	if err := json.Unmarshal([]byte(result), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// screenshot writes a picture of the whole page, or of its first height pixels, into the
// folder $SCREENSHOTS, if there is one.
func (b *browser) screenshot(t *testing.T, name string, whole bool) {
	t.Helper()
	folder := os.Getenv("SCREENSHOTS")
	if folder == "" {
		return
	}
	shoot := chromedp.CaptureScreenshot()
	if whole {
		shoot = chromedp.FullScreenshot(100)
	}
	png, err := chromedp.Run(b.ctx, shoot)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLook: on screens of each size, light and dark, axe-core finds no fault with any page,
// nothing is wider than the screen, and Chromium has nothing to complain about.
func TestLook(t *testing.T) {
	b := newBrowser(t)
	few, many := sample(t, 0), sample(t, 44000)
	pages := map[string]string{
		"overview": few, "many": many, "search": many + "?q=ns-7%2F&page=3", "none": few + "?q=nothing",
		"state":       few + "?state=quarantined",
		"quarantined": few + "?service=z/refused", "conflict": few + "?service=e/second",
		"local": few + "?service=b/none-here", "empty": few + "?service=f/empty",
		"draining": few + "?view=draining", "explanation": few + "?explain=10.96.0.7:80/tcp", "error": few + "?page=0",
		"start": serve(t, statuspagetest.New(func(c *statuspage.Config) {
			c.Ready = func() (bool, string) {
				return false, "IPv4: the first complete rules are not in the kernel yet: waiting for Services, EndpointSlices"
			}
		})),
	}
	for _, size := range []struct{ width, height int64 }{{360, 740}, {560, 900}, {1280, 900}} {
		for _, scheme := range []string{"light", "dark"} {
			wide := size.width > 1000
			b.look(t, size.width, size.height, scheme)
			for name, url := range pages {
				if large := name == "many" || name == "search"; large && wide == (scheme == "light") {
					continue // axe-core takes long for 100 Services.
				}
				t.Run(fmt.Sprintf("%s-%d-%s", name, size.width, scheme), func(t *testing.T) {
					b.open(t, url)
					// All of the page is to be checked, also what is folded.
					b.screenshot(t, fmt.Sprintf("%s-%d-%s", name, size.width, scheme), name != "many" && name != "search")
					evaluate[int](t, b, "document.querySelectorAll('details').forEach(d => d.open = true); 0")
					wide := evaluate[[]string](t, b, `[...document.querySelectorAll('body *')].filter(e => `+
						`e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !e.closest('thead')).map(e => `+
						`e.outerHTML.slice(0, 200))`)
					if len(wide) > 0 {
						t.Errorf("%d elements are wider than the screen, such as %s", len(wide), wide[0])
					}
					for _, v := range b.axe(t) {
						t.Errorf("axe-core: %s (%s): %s; %d times, such as %s\n%s", v.ID, v.Impact, v.Help, len(v.Nodes), v.Nodes[0].HTML,
							v.Nodes[0].FailureSummary)
					}
				})
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) < 5*len(pages) {
		t.Errorf("Chromium asked for %d pages only", len(b.requests))
	}
	for _, url := range b.requests {
		if !strings.HasPrefix(url, "http://127.0.0.1:") && url != "data:," {
			t.Errorf("Chromium asked for %s", url)
		}
		if path, _, _ := strings.Cut(url, "?"); strings.HasPrefix(url, "http:") && !strings.HasSuffix(path, statuspage.Path) {
			t.Errorf("Chromium asked for %s", url)
		}
	}
	for _, text := range b.complaints {
		if !strings.Contains(text, "400 (Bad Request)") { // the page "error"
			t.Errorf("Chromium complains: %s", text)
		}
	}
}

// TestScript: no script runs in the page, whoever wrote it.
func TestScript(t *testing.T) {
	b := newBrowser(t)
	b.open(t, sample(t, 0))
	ran := evaluate[bool](t, b, `(() => { const s = document.createElement('script'); s.textContent = 'window.ran = `+
		`true'; document.body.append(s); return !!window.ran })()`)
	if ran {
		t.Error("an inserted script ran")
	}
}

// TestKeyboard: the first stop is the link to the content, each stop is visible, and the
// search works without a mouse.
func TestKeyboard(t *testing.T) {
	b := newBrowser(t)
	b.look(t, 1280, 900, "light")
	b.open(t, sample(t, 500))
	focused := func() string {
		return evaluate[string](t, b, "document.activeElement.innerText || document.activeElement.id")
	}
	press := func(key string) { b.do(t, chromedp.KeyEvent(key)) }
	press(kb.Tab)
	if got := focused(); got != "Skip to the content" {
		t.Errorf("the first stop is %q", got)
	}
	press(kb.Enter)
	if _, err := chromedp.Run(b.ctx, chromedp.Poll[bool]("document.activeElement.id === 'main'")); err != nil {
		t.Fatalf("the link leads to %q: %v", focused(), err)
	}
	reached := false
	for range 200 {
		press(kb.Tab)
		visible := evaluate[bool](t, b, `(() => { const s = getComputedStyle(document.activeElement); return `+
			`s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2 })()`)
		if !visible {
			t.Errorf("the stop at %q is not to be seen", focused())
		}
		if reached = evaluate[string](t, b, "document.activeElement.id") == "q"; reached {
			break
		}
	}
	if !reached {
		t.Fatal("the search is not to be reached by keyboard")
	}
	b.do(t, chromedp.KeyEvent("svc-123"), chromedp.KeyEvent(kb.Enter),
		chromedp.WaitVisible(chromedp.CSS(`a[href*="svc-123"]`)))
	found := evaluate[[]string](t, b, "[...document.querySelectorAll('table.services tbody th')].map(e => e.innerText)")
	if fmt.Sprint(found) != "[ns-23/svc-123]" {
		t.Errorf("the search finds %v", found)
	}
	b.do(t, chromedp.Click(chromedp.CSS("table.services tbody th a")), chromedp.WaitVisible(chromedp.CSS("#port-1")))
	title, err := chromedp.Run(b.ctx, chromedp.Title())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(title, "ns-23/svc-123") {
		t.Errorf("the link leads to %q", title)
	}
}

// TestTree: a screen reader meets landmarks, headings and tables, on a phone too, where the
// rows of a table are laid out as blocks.
func TestTree(t *testing.T) {
	b := newBrowser(t)
	url := sample(t, 0)
	for _, width := range []int64{360, 1280} {
		b.look(t, width, 800, "light")
		b.open(t, url)
		tree := b.tree(t)
		for role, least := range map[string]int{
			"banner": 1, "main": 1, "contentinfo": 1, "search": 1, "navigation": 1, "region": 3, "heading": 4,
			"table": 1, "columnheader": 5, "rowheader": 8, "cell": 32, "searchbox": 1, "image": 1,
		} {
			if n := len(tree[role]); n < least {
				t.Errorf("%d px: %d nodes with role %s, want %d: %v", width, n, role, least, tree[role])
			}
		}
		if got := strings.Join(tree["searchbox"], ""); got != "Search by name, address or port" {
			t.Errorf("%d px: the field is called %q", width, got)
		}
		if got := strings.Join(tree["image"], ""); !strings.Contains(got, "Latency of the last syncs") {
			t.Errorf("%d px: the picture is called %q", width, got)
		}
	}
}

// tree has the names of the nodes that a screen reader meets, by role.
func (b *browser) tree(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	for _, n := range call(t, b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		var role, name string
		if err := json.Unmarshal(n.Role.Value, &role); err != nil {
			t.Fatal(err)
		}
		if n.Name != nil {
			if err := json.Unmarshal(n.Name.Value, &name); err != nil {
				t.Fatal(err)
			}
		}
		names[role] = append(names[role], name)
	}
	return names
}
