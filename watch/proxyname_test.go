package watch

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"nftproxy/model/service"
)

// TestProxyName: a proxy takes the Services whose label has its name, one without a name
// those without the label. A Service may go from one to the other: whoever does not serve it
// knows that another proxy does, also when all of them go at once.
func TestProxyName(t *testing.T) {
	for _, own := range []string{"", "mesh"} {
		w := NewWatcher(Options{Node: "node-0", ProxyName: own}, service.NewMailbox())
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
			served, others := 0, 1
			if step.serves == own {
				served, others = 1, 0
			}
			if snapshot.Services.Len() != served || snapshot.Others.Len() != others {
				t.Errorf("proxy %q, labels %v: %d served and %d of others, want %d and %d", own, step.labels,
					snapshot.Services.Len(), snapshot.Others.Len(), served, others)
			}
		}
		w.index.deleteService("ns-0/svc-0")
		if snapshot := w.index.flush(); snapshot.Services.Len()+snapshot.Others.Len() != 0 {
			t.Errorf("proxy %q: the Service is still there after its deletion:\n%s", own, snapshot)
		}
	}
}

// TestOthersNeedAnAddress: a headless Service, an ExternalName and one that has become such is no other proxy's.
func TestOthersNeedAnAddress(t *testing.T) {
	ix := newIndex("node-0")
	for _, edit := range []string{"None", ""} {
		s := uniformService(0)
		s.Labels = map[string]string{labelProxyName: "mesh"}
		ix.setService(convertService(s))
		if n := ix.flush().Others.Len(); n != 1 {
			t.Fatalf("%d Services of others, want 1", n)
		}
		s.Spec.ClusterIP, s.Spec.ClusterIPs = edit, nil
		ix.setService(convertService(s))
		if n := ix.flush().Others.Len(); n != 0 {
			t.Errorf("clusterIP %q: %d Services of others, want none", edit, n)
		}
	}
}
