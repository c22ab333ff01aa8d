package main

import (
	"context"
	"maps"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"nftproxy/daemon/health"
	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/statuspage"
	"nftproxy/daemon/zpages"
	"nftproxy/look/explain"
	"nftproxy/look/explain/live"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
)

// newStatusPage makes the status page.
func (d *daemon) newStatusPage(judge *health.Health) *statuspage.Page {
	rules := d.ruleset
	return statuspage.New(statuspage.Config{
		Version: version(), Node: d.node, Table: d.ruleset.Table, Started: time.Now(),
		Ready: judge.Ready, Status: judge.Status, NodePortAddresses: d.ruleset.NodePortAddresses,
		Connections: func(ctx context.Context, s service.Snapshot) (*inspect.Connections, error) {
			return connectionsOf(ctx, rules, s)
		},
		Explain: func(ctx context.Context, from explain.Origin, to explain.Destination, objects *service.Snapshot) (explain.Explanation, error) {
			return explainTo(ctx, rules.Table, from, to, objects)
		},
	})
}

// explainTo explains a packet for a page.
func explainTo(ctx context.Context, table string, from explain.Origin, to explain.Destination, objects *service.Snapshot) (explain.Explanation, error) {
	node, err := live.Look(ctx, table)
	if err != nil {
		return explain.Explanation{}, err
	}
	defer node.Close()
	question, err := node.Ask(from, to)
	if err != nil {
		return explain.Explanation{}, err
	}
	return node.Explain(ctx, question, objects, "the objects that nftproxy follows")
}

// metricsHandler serves the metrics, what kube-proxy tells about its process beside them,
// and the status page.
func (d *daemon) metricsHandler(registry *prometheus.Registry, slis *metrics.SLIs, page http.Handler) http.Handler {
	mux, paths := health.MetricsHandler(health.Pages{Metrics: registry, SLIs: slis.Gatherer(), ResetSLIs: slis.Reset, Checked: slis.Observe})
	mux.Handle(statuspage.Path, page)
	paths = append(paths, statuspage.Path)
	zpages.Install(mux, zpages.Config{
		Component: "nftproxy", Version: version(), Started: time.Now(),
		Flags: d.flagValues, Configuration: d.configuration, Group: v1alpha1.GroupName,
		Profiling: d.options.profiling,
		SetVerbosity: func(n int) error {
			d.setVerbosity(n)
			d.log.Info("changed the verbosity of the log", "v", n)
			return nil
		},
	}, paths...)
	return mux
}

// flagValues returns the values in force of all flags by name.
func (d *daemon) flagValues() map[string]string {
	values := map[string]string{}
	d.flags.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	if live := d.live.Load(); live != nil {
		maps.Copy(values, *live)
	}
	return values
}

// configuration is the one in force, in kube-proxy's form.
func (d *daemon) configuration() (any, error) {
	values := d.flagValues()
	return kubeproxyconfig.Effective(func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	})
}
