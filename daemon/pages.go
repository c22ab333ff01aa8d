package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/kube-proxy/config/v1alpha1"

	"nftproxy/daemon/flows"
	"nftproxy/daemon/health"
	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/statuspage"
	"nftproxy/look/explain"
	"nftproxy/look/explain/live"
	"nftproxy/look/inspect"
	"nftproxy/look/nodestatus"
	"nftproxy/model/service"
)

func newStatusPage(c Config, judge *health.Health, problems func(service.Name) []string,
	held func(service.Name) string, beside func() statuspage.Beside, follower *flows.Follower) *statuspage.Page {
	config := statuspage.Config{
		Beside: beside, Held: held,
		Version: c.Version, Node: c.Node, Table: c.Rules.Table, Started: time.Now(),
		Ready: judge.Ready, Status: judge.Status, NodePortAddresses: c.Rules.NodePortAddresses, Problems: problems,
		Connections: func(ctx context.Context, s service.Snapshot) (*inspect.Connections, error) {
			return inspect.CountConnections(ctx, c.Rules, s)
		},
		Explain: func(ctx context.Context, from explain.Origin, to explain.Destination,
			objects *service.Snapshot) (explain.Explanation, error) {
			return explainTo(ctx, c.Rules.Table, from, to, objects, problems)
		},
	}
	if follower != nil {
		config.Flows = follower.Of
	}
	return statuspage.New(config)
}

// heldWords says how many connections of a Service are held, by the latest look.
func (p *parts) heldWords(name service.Name) string {
	h := p.refused.Held(name)
	return inspect.Held{Connections: h.Connections, Longest: time.Since(h.Since)}.String()
}

// besideTheSyncs is what the parts that the page does not know say about the node.
func (p *parts) besideTheSyncs() statuspage.Beside {
	b := statuspage.Beside{Configuration: configurationDigest(p.follower.Flags())}
	if behind := p.watcher.Behind(); len(behind.Resources) > 0 {
		b.Behind = &nodestatus.Behind{Resources: behind.Resources, Since: behind.Since.UTC()}
		if behind.Err != nil {
			b.Behind.Error = behind.Err.Error()
		}
	}
	notes := []string{p.watcher.Retained().String(), p.server.note(), p.rewriters.Note(), p.others.Note(),
		p.kubeProxy.Note()}
	if p.flowing != nil && p.flowing.Silent() != "" {
		notes = append(notes, "cannot follow connections (--nftproxy-flows): "+p.flowing.Silent())
	}
	b.Warnings = strings.FieldsFunc(strings.Join(notes, "\n"), func(c rune) bool { return c == '\n' })
	return b
}

// configurationDigest is equal for nodes with the same flags but for the node's name.
func configurationDigest(flags map[string]string) string {
	const length = 12
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		if name != "hostname-override" {
			fmt.Fprintf(sum, "%s=%q\n", name, flags[name])
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:length]
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
	page http.Handler, follower *flows.Follower) http.Handler {
	mux, paths := health.MetricsHandler(health.Pages{Metrics: registry, SLIs: slis.Gatherer(), ResetSLIs: slis.Reset,
		Checked: slis.Observe})
	mux.Handle(statuspage.Path, page)
	paths = append(paths, statuspage.Path)
	if follower != nil {
		mux.Handle(flows.Path, follower.Handler(c.Node))
		paths = append(paths, flows.Path)
	}
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
