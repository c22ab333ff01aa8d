package statuspage_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"nftproxy/test/check"
)

// FuzzRequest: whatever the query of a request, the page answers in bounded memory. What
// the query says does not become markup.
func FuzzRequest(f *testing.F) {
	for _, query := range []string{
		"", "q=10.96.0.2:443", "q=203.0.113.0/24+e/&state=conflict&page=2", "service=a/serving&port=1", "view=draining",
		"explain=10.96.0.2:443/udp&from=10.0.0.1@eth0", "explain=%3Cscript%3E", "q=%22%3E%3Cimg+src=x+onerror=1%3E",
	} {
		f.Add(query)
	}
	p := sample()
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:10249/status", nil)
		r.URL.RawQuery = query
		w := httptest.NewRecorder()
		check.Bounded(t, 16<<20+64*uint64(len(query)), func() { p.ServeHTTP(w, r) })
		body, err := io.ReadAll(w.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		answers := []int{http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusTooManyRequests,
			http.StatusServiceUnavailable}
		if !slices.Contains(answers, w.Code) {
			t.Errorf("status %d:\n%s", w.Code, body)
		}
		doc, err := html.Parse(strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		for d := range doc.Descendants() {
			if slices.Contains([]string{"script", "iframe", "img", "object", "embed", "base"}, d.Data) &&
				d.Type == html.ElementNode {
				t.Errorf("the page has <%s>", d.Data)
			}
			for _, a := range d.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "href" && a.Val != "data:," && !strings.HasPrefix(a.Val, "?") &&
					!strings.HasPrefix(a.Val, "#") && !strings.HasPrefix(a.Val, "/") {
					t.Errorf("<%s> has %s=%q", d.Data, a.Key, a.Val)
				}
			}
		}
	})
}
