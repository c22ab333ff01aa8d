package daemon

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/kube-proxy/config/v1alpha1"

	"nftproxy/daemon/health"
	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/statuspage"
	"nftproxy/look/explain"
	"nftproxy/look/explain/live"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
)

func newStatusPage(c Config, judge *health.Health, problems func(service.Name) []string) *statuspage.Page {
	return statuspage.New(statuspage.Config{
		Version: c.Version, Node: c.Node, Table: c.Rules.Table, Started: time.Now(),
		Ready: judge.Ready, Status: judge.Status, NodePortAddresses: c.Rules.NodePortAddresses, Problems: problems,
		Connections: func(ctx context.Context, s service.Snapshot) (*inspect.Connections, error) {
			return inspect.CountConnections(ctx, c.Rules, s)
		},
		Explain: func(ctx context.Context, from explain.Origin, to explain.Destination,
			objects *service.Snapshot) (explain.Explanation, error) {
			return explainTo(ctx, c.Rules.Table, from, to, objects, problems)
		},
	})
}

// explainTo explains a packet for a page.
func explainTo(ctx context.Context, table string, from explain.Origin, to explain.Destination,
	objects *service.Snapshot, problems func(service.Name) []string) (explain.Explanation, error) {
	node, err := live.Look(ctx, table)
	if err != nil {
		return explain.Explanation{}, err
	}
	defer node.Close()
	question, err := node.Ask(from, to)
	if err != nil {
		return explain.Explanation{}, err
	}
	return node.Explain(ctx, question, objects, problems, "the objects that nftproxy follows")
}

// metricsHandler serves the metrics, what kube-proxy tells about its process beside them,
// and the status page. flags returns the values in force of all flags.
func metricsHandler(c Config, flags func() map[string]string, registry *prometheus.Registry, slis *metrics.SLIs,
	page http.Handler) http.Handler {
	mux, paths := health.MetricsHandler(health.Pages{Metrics: registry, SLIs: slis.Gatherer(), ResetSLIs: slis.Reset,
		Checked: slis.Observe})
	mux.Handle(statuspage.Path, page)
	paths = append(paths, statuspage.Path)
	process := health.ProcessPages{
		Component: "nftproxy", Version: c.Version, Started: time.Now(),
		Flags: flags, Group: v1alpha1.GroupName,
		Configuration: func() (any, error) {
			values := flags()
			return kubeproxyconfig.Effective(func(name string) (string, bool) {
				value, ok := values[name]
				return value, ok
			})
		},
		Profiling: c.Profiling,
		SetVerbosity: func(n int) {
			c.SetVerbosity(n)
			c.Log.Info("changed the verbosity of the log", "v", n)
		},
	}
	process.Install(mux, paths...)
	return mux
}
