package health

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"nftproxy/internal/proxy"
	"nftproxy/nft"
)

// Handler serves what kubelets and load balancers ask:
//
//   - /healthz: 200 if every family is healthy and the node eligible, else 503
//   - /livez: the same whatever the node: restarting the proxy would not help
//   - /readyz: 200 from the first time on that the program was in force in
//     both families, else 503 and what is in the way of which
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", h.serveHealthz)
	mux.HandleFunc("/livez", h.serveLivez)
	mux.HandleFunc("/readyz", h.serveReadyz)
	return mux
}

func (h *Health) serveHealthz(w http.ResponseWriter, r *http.Request) {
	s := h.Status()
	well := s.Healthy
	if h.config.NodeEligible != nil {
		eligible := h.config.NodeEligible()
		s.NodeEligible = &eligible
		well = well && eligible
	}
	h.answer(w, r, s, well)
}

func (h *Health) serveLivez(w http.ResponseWriter, r *http.Request) {
	s := h.Status()
	h.answer(w, r, s, s.Healthy)
}

func (h *Health) answer(w http.ResponseWriter, r *http.Request, s Status, well bool) {
	code := http.StatusServiceUnavailable
	if well {
		code = http.StatusOK
		s.LastUpdated = s.CurrentTime
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	// An error here is the client's going away.
	_ = json.NewEncoder(w).Encode(s)
	h.config.Answered(r.URL.Path, code)
}

func (h *Health) serveReadyz(w http.ResponseWriter, r *http.Request) {
	code, text := http.StatusOK, "ok"
	if waiting := h.Waiting(); len(waiting) > 0 {
		code, text = http.StatusServiceUnavailable, explain(waiting)
	}
	plain(w, code, text)
	h.config.Answered(r.URL.Path, code)
}

func explain(waiting map[nft.Family]error) string {
	var lines []string
	for _, f := range nft.Families() {
		err, ok := waiting[f]
		if !ok {
			continue
		}
		line := proxy.IPFamily(f) + ": the program has not been in force yet"
		if err != nil {
			line += ": " + err.Error()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// MetricsHandler serves the paths of kube-proxy's metrics server: /metrics,
// /healthz, which says only that the process answers, and /proxyMode, by which
// tools tell what they deal with.
func MetricsHandler(g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "nftables") })
	return mux
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = fmt.Fprint(w, text)
}
