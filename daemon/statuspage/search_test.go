package statuspage_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestSearch: by name, address, range, port, and by endpoints; all words have to match.
func TestSearch(t *testing.T) {
	p := sample()
	for query, want := range map[string]string{
		"serving":           "a/serving",
		"E/":                "e/second e/first",
		"10.96.0.2":         "b/none-here",
		"10.96.0.2:443":     "b/none-here",
		"10.96.0.2:444":     "",
		"10.96.0.2:443/udp": "",
		"10.96.0.2:443/tcp": "b/none-here",
		"203.0.113.0/24":    "e/second b/none-here e/first",
		"203.0.113.0/24 e/": "e/second e/first",
		"fd00::7":           "f/empty",
		"[fd00::7]:53":      "f/empty",
		"fd00::/16":         "f/empty",
		"53":                "f/empty",
		"53/tcp":            "f/empty",
		"53/udp":            "",
		":30443":            "b/none-here",
		"192.168.0.1:30443": "b/none-here",
		"192.168.0.1:443":   "",
		"10.244.1.9":        "a/serving",
		"10.244.1.9:8080":   "a/serving",
		"10.244.1.9:8081":   "",
		"8443":              "b/none-here",
		"nothing":           "",
		"<b>":               "",
	} {
		a := get(t, p, "/status?q="+url.QueryEscape(query))
		if got := strings.Join(names(a), " "); got != want {
			t.Errorf("%q finds %q, want %q", query, got, want)
		}
		if got := attribute(elements(a.doc, "input")[0], "value"); got != query {
			t.Errorf("the field has %q, want %q", got, query)
		}
		if want == "" && !strings.Contains(words(a.doc), ": none.") {
			t.Errorf("%q: the page does not say that there is none", query)
		}
	}
	if got := strings.Join(names(get(t, p, "/status?q=10.96.0.0/16&state=conflict")), " "); got != "e/second" {
		t.Errorf("search in a state finds %q", got)
	}
}

// TestBadRequest: the answer says what is wrong with the request.
func TestBadRequest(t *testing.T) {
	p := sample()
	for target, want := range map[string]string{
		"?q=" + strings.Repeat("x", 301): "the search has 301 bytes, more than 300",
		"?q=1+2+3+4+5+6+7+8+9":           "the search has 9 words, more than 8",
		"?page=0":                        `page "0" is not a number from 1 on`,
		"?page=x":                        `page "x" is not a number from 1 on`,
		"?state=bad":                     `there is no state "bad"`,
		"?port=1":                        "a port needs a Service",
	} {
		a := ask(t, p, http.MethodGet, "/status"+target)
		if a.StatusCode != http.StatusBadRequest || !strings.Contains(words(a.doc), want) {
			t.Errorf("%s: %s %q, want %q", target, a.Status, words(a.doc), want)
		}
	}
	for target, want := range map[string]string{
		"?service=x/y":              `no Service "x/y"`,
		"?service=a/serving&port=2": "has 1 port.",
	} {
		a := ask(t, p, http.MethodGet, "/status"+target)
		if a.StatusCode != http.StatusNotFound || !strings.Contains(words(a.doc), want) {
			t.Errorf("%s: %s %q, want %q", target, a.Status, words(a.doc), want)
		}
	}
}
