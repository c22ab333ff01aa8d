package scenario_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"nftproxy/test/scenario"
)

// TestReadAnswer: what an answer has to have, each thing missing in turn.
func TestReadAnswer(t *testing.T) {
	const weight = "X-Load-Balancing-Endpoint-Weight"
	right := `{"service":{"namespace":"ns","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}`
	for name, c := range map[string]struct {
		header, value string // one that is other than it should be
		body, problem string
	}{
		"as it should be":           {body: right},
		"no JSON by its header":     {"Content-Type", "text/plain", right, "Content-Type"},
		"sniffed by browsers":       {"X-Content-Type-Options", "", right, "X-Content-Type-Options"},
		"without weight":            {weight, "", right, "weight"},
		"of another weight":         {weight, "3", right, "2 local endpoints"},
		"no JSON":                   {body: "ok", problem: "body"},
		"of a proxy that is unwell": {body: strings.Replace(right, "true", "false", 1), problem: "not healthy"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(c.body))}
			for name, value := range map[string]string{"Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
				weight: "2"} {
				r.Header.Set(name, value)
			}
			if c.header != "" {
				r.Header.Set(c.header, c.value)
			}
			got, err := scenario.ReadAnswer(r)
			want := scenario.Answer{Code: 200, Service: "ns/web", Weight: 2}
			switch {
			case c.problem == "" && (err != nil || got != want):
				t.Errorf("read as %s, error %v; want %s", got, err, want)
			case c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)):
				t.Errorf("error %v, want one about %q", err, c.problem)
			}
		})
	}
}
