package watch

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"nftproxy/model/service"
)

// TestProxyName: a proxy takes the Services whose label has its name, one without a name
// those without the label. A Service may go from one to the other.
func TestProxyName(t *testing.T) {
	for _, own := range []string{"", "mesh"} {
		w := NewWatcher(Options{Node: "node-0", ProxyName: own}, service.NewMailbox())
		selector, err := labels.Parse(w.opts.serviceLabels())
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			labels labels.Set
			serves string
		}{
			{nil, ""},
			{labels.Set{labelProxyName: "mesh"}, "mesh"},
			{labels.Set{labelProxyName: "other"}, "other"},
			{labels.Set{"app": "web"}, ""},
			{labels.Set{labelProxyName: ""}, "a name that is empty"},
			{labels.Set{labelProxyName: "mesh"}, "mesh"},
			{labels.Set{labelProxyName: "mesh2"}, "mesh2"},
		} {
			s := uniformService(0)
			s.Labels = step.labels
			w.index.setService(convertService(s))
			snapshot := w.index.flush()
			if got, want := snapshot.Services.Len() == 1, step.serves == own; got != want {
				t.Errorf("proxy %q, labels %v: served %t, want %t", own, step.labels, got, want)
			}
			if got, want := selector.Matches(step.labels), step.serves == own; got != want {
				t.Errorf("proxy %q asks the API server for %q, which selects %v: %t, want %t", own, selector, step.labels, got, want)
			}
		}
	}
}
