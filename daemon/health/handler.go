package health

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"nftproxy/nft"
	"nftproxy/node/otherproxy"
)

// Handler serves the paths for kubelets and load balancers:
//
//   - /healthz: 200 if every family is healthy and the node is eligible, else 503
//   - /livez: the same without the node, since restarting the proxy would not make it
//     eligible
//   - /readyz: 200 once the program has been in force in both families, else 503 with
//     a reason for each family
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
	w.Header().Set("Server", otherproxy.ServerHeader) // The clean-up would take the server for kube-proxy's.
	w.WriteHeader(code)
	// An error here means that the client has gone away.
	_ = json.NewEncoder(w).Encode(s)
	h.config.Answered(r.URL.Path, code)
}

func (h *Health) serveReadyz(w http.ResponseWriter, r *http.Request) {
	code := http.StatusOK
	ready, text := h.Ready()
	if !ready {
		code = http.StatusServiceUnavailable
	}
	plain(w, code, text)
	h.config.Answered(r.URL.Path, code)
}

// Ready says whether the program has been in force in both families. The text is the body of /readyz: "ok", with the
// note on a line of its own if there is one, or a line for each family that waits, with the reason.
func (h *Health) Ready() (ready bool, text string) {
	if waiting := h.Waiting(); len(waiting) > 0 {
		return false, explain(waiting, h.config.Awaiting())
	}
	if note := h.config.Note(); note != "" {
		return true, "ok\n" + note
	}
	return true, "ok"
}

// explain has a line for each family that waits.
func explain(waiting map[nft.Family]error, awaiting []string) string {
	var lines []string
	for _, f := range nft.Families() {
		err, ok := waiting[f]
		if !ok {
			continue
		}
		line := f.Name() + ": the first complete rules are not in the kernel yet"
		if err != nil {
			line += ": " + err.Error()
		} else if len(awaiting) > 0 {
			line += ": waiting for " + strings.Join(awaiting, ", ")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// Pages are what the metrics server serves.
type Pages struct {
	// Metrics are those of /metrics, SLIs those of /metrics/slis. ResetSLIs forgets the results in the latter.
	Metrics, SLIs prometheus.Gatherer
	ResetSLIs     func()
	// Checked is called with each answer of /healthz.
	Checked func(name, kind string, passed bool)
}

// MetricsHandler serves the paths of kube-proxy's metrics server: /metrics, /metrics/slis, /healthz and /proxyMode.
// /healthz says only that the process answers. Tools read the kind of the proxy from /proxyMode. paths lists them.
func MetricsHandler(p Pages) (mux *http.ServeMux, paths []string) {
	mux = http.NewServeMux()
	slis := promhttp.HandlerFor(p.SLIs, promhttp.HandlerOpts{})
	ping := func(w http.ResponseWriter, r *http.Request) {
		p.Checked("ping", "healthz", true)
		text := "ok"
		if r.URL.Query().Has("verbose") {
			text = "[+]ping ok\nhealthz check passed\n"
		}
		plain(w, http.StatusOK, text)
	}
	for path, handler := range map[string]http.Handler{
		"/metrics": promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{}),
		"/metrics/slis": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete {
				p.ResetSLIs()
				plain(w, http.StatusOK, "metrics reset\n")
				return
			}
			slis.ServeHTTP(w, r)
		}),
		"/healthz":      http.HandlerFunc(ping),
		"/healthz/ping": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") }),
		"/proxyMode": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			plain(w, http.StatusOK, "nftables")
		}),
	} {
		mux.Handle(path, handler)
		paths = append(paths, path)
	}
	return mux, paths
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Server", otherproxy.ServerHeader)
	w.WriteHeader(code)
	_, _ = fmt.Fprint(w, text)
}
