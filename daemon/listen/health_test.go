package listen

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHealthAnswer(t *testing.T) {
	type reply struct {
		Code                         int
		ContentType, NoSniff, Weight string
		Body                         string
	}
	for _, c := range []struct {
		name    string
		answer  answer
		healthy bool
		want    reply
	}{
		{"endpoints", answer{"ns/web", 3, true}, true, reply{
			200, "application/json", "nosniff", "3",
			`{"service":{"namespace":"ns","name":"web"},"localEndpoints":3,"serviceProxyHealthy":true}` + "\n"}},
		{"no endpoints", answer{"ns/web", 0, false}, true, reply{
			503, "application/json", "nosniff", "0",
			`{"service":{"namespace":"ns","name":"web"},"localEndpoints":0,"serviceProxyHealthy":true}` + "\n"}},
		{"those of other nodes serve", answer{"ns/web", 0, true}, true, reply{
			200, "application/json", "nosniff", "0",
			`{"service":{"namespace":"ns","name":"web"},"localEndpoints":0,"serviceProxyHealthy":true}` + "\n"}},
		{"the proxy is unwell", answer{"ns/web", 3, true}, false, reply{
			503, "application/json", "nosniff", "3",
			`{"service":{"namespace":"ns","name":"web"},"localEndpoints":3,"serviceProxyHealthy":false}` + "\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &healthPort{healthy: func() bool { return c.healthy }}
			p.set(c.answer)
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodOptions, "BREW"} {
				for _, path := range []string{"/", "/healthz", "/any/thing?x=1"} {
					w := httptest.NewRecorder()
					p.ServeHTTP(w, httptest.NewRequest(method, path, nil))
					h := w.Header()
					got := reply{w.Code, h.Get("Content-Type"), h.Get("X-Content-Type-Options"),
						h.Get("X-Load-Balancing-Endpoint-Weight"), w.Body.String()}
					if diff := cmp.Diff(c.want, got); diff != "" {
						t.Errorf("%s %s (-want +got):\n%s", method, path, diff)
					}
				}
			}
		})
	}
}
