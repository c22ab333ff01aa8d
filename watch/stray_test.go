package watch

import (
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"nftproxy/model/service"
)

// strayRig has the Service tenant/web, and slices that may be meant for it.
type strayRig struct {
	*testing.T
	index *index
}

func newStrayRig(t *testing.T) *strayRig {
	w := NewWatcher(Options{Node: "node-0"}, service.NewMailbox())
	r := &strayRig{t, w.index}
	r.index.at = time.Unix(1_800_000_000, 0)
	return r
}

// service sets a Service in the namespace tenant, slice an EndpointSlice with an endpoint. An empty label is none.

func (r *strayRig) service(name string) {
	address := "10.96.0.10"
	if name != "web" {
		address = "10.96.0.11"
	}
	r.index.setService(convertService(grabbing(name, 0, address)))
}

func (r *strayRig) slice(namespace, name, label string) {
	s := sliceFor(grabbing(label, 0, ""), name, "10.244.0.1")
	s.Namespace = namespace
	if label == "" {
		delete(s.Labels, discoveryv1.LabelServiceName)
	}
	r.index.setSlice(convertSlice(s))
}

func (r *strayRig) after(d time.Duration) {
	r.index.at = r.index.at.Add(d)
	r.index.flush()
	r.index.reportStrays(r.index.at)
}

// want compares what is in the row of tenant/web, and what has been reported since the last call.
func (r *strayRig) want(what, row, reported string) {
	r.Helper()
	if got := strings.Join(r.index.standing("tenant/web"), "\n"); got != row {
		r.Errorf("%s: the row has\n%s\nwant\n%s", what, got, row)
	}
	if got := texts(r.index.takeProblems()); got != reported {
		r.Errorf("%s: reported\n%s\nwant\n%s", what, got, reported)
	}
}

const (
	strayMistyped = `EndpointSlice tenant/a: metadata.labels[kubernetes.io/service-name]: "wbe": namespace tenant has ` +
		`no such Service with a cluster IP; did you mean web?`
	strayElsewhere = `EndpointSlice other/a: metadata.labels[kubernetes.io/service-name]: "web": namespace other has no ` +
		`such Service with a cluster IP`
	strayUnlabelled = "EndpointSlice tenant/web-1: metadata.labels: no kubernetes.io/service-name: it belongs to no " +
		"Service"
)

// TestStrays: an EndpointSlice of no Service is in the row of a Service without endpoints that it may be meant for. It
// is reported once, if that lasts.
func TestStrays(t *testing.T) {
	for what, c := range map[string]struct {
		slice [3]string
		row   string
		// atOnce says that the slice is reported when it comes.
		atOnce bool
	}{
		"mistyped":                 {slice: [3]string{"tenant", "a", "wbe"}, row: strayMistyped},
		"in another namespace":     {slice: [3]string{"other", "a", "web"}, row: strayElsewhere},
		"without the label":        {slice: [3]string{"tenant", "web-1", ""}, row: strayUnlabelled, atOnce: true},
		"of quite another name":    {slice: [3]string{"tenant", "web-1", "database"}},
		"mistyped, in another one": {slice: [3]string{"other", "a", "wbe"}},
	} {
		t.Run(what, func(t *testing.T) {
			for _, first := range []string{"Service", "slice"} {
				r := newStrayRig(t)
				if first == "Service" {
					r.service("web")
					r.after(time.Hour)
				}
				r.slice(c.slice[0], c.slice[1], c.slice[2])
				r.after(0)
				r.service("web")
				r.after(0)
				soon, late := "", c.row
				if c.atOnce {
					soon, late = late, soon
				}
				r.want(first+" first", c.row, soon)
				r.after(strayAge)
				r.want(first+" first, later", c.row, late)
				r.after(strayAge)
				r.want(first+" first, later still", c.row, "")
				r.slice("tenant", "good", "web")
				r.after(strayAge)
				r.want("with an endpoint", "", "")
				r.index.deleteSlice("tenant/good")
				r.index.deleteSlice(service.NewName(c.slice[0], c.slice[1]))
				r.after(strayAge)
				r.want("without the slice", "", "")
				if len(r.index.strays) > 0 {
					t.Errorf("kept: %v", r.index.strays)
				}
			}
		})
	}
}

// TestStraysOfRollouts: a slice that comes before its Service, or stays after it for a while, is not reported. Nor is
// one of a Service that this proxy does not serve, or that is still served from before.
func TestStraysOfRollouts(t *testing.T) {
	r := newStrayRig(t)
	r.service("web")
	r.slice("tenant", "a", "wbe")
	r.after(strayAge - time.Second)
	r.service("wbe")
	r.after(strayAge)
	r.want("its Service has come", "", "")
	r.index.deleteService("tenant/wbe")
	r.after(0)
	r.want("its Service has gone", strayMistyped, "")
	r.after(strayAge - time.Second)
	r.index.deleteSlice("tenant/a")
	r.after(strayAge)
	r.want("it has gone too", "", "")

	other := grabbing("wbe", 0, "10.96.0.11")
	other.Labels = map[string]string{labelProxyName: "mesh"}
	r.index.setService(convertService(other))
	r.slice("tenant", "a", "wbe")
	r.after(strayAge)
	r.want("another proxy's", "", "")
}

// TestManyStrays: the number of those that are kept has a bound, in each namespace.
func TestManyStrays(t *testing.T) {
	r := newStrayRig(t)
	for i := range 2 * maxStrays {
		r.slice("other", "slice-"+strings.Repeat("a", i), "none-"+strings.Repeat("b", i))
	}
	r.service("web")
	r.slice("tenant", "a", "wbe")
	r.after(0)
	r.want("beside many of another namespace", strayMistyped, "")
	if n := len(r.index.strays[strayKey{namespace: "other"}]); n != maxStrays {
		t.Errorf("%d are kept, want %d", n, maxStrays)
	}
	r.slice("tenant", "a", "web")
	r.after(0)
	r.want("mended", "", "")
}

// TestMeantLabel: the reason of a slice without the label names a label that was meant to be it.
func TestMeantLabel(t *testing.T) {
	for key, meant := range map[string]bool{
		"kubernetes.io/service-nam": true, "kubernetes.io/Service-Name": true, "k8s.io/service-name": true,
		"service-name": true, "app": false, "kubernetes.io/hostname": false,
	} {
		if got := meantLabel(map[string]string{key: "web"}); (got == key) != meant {
			t.Errorf("%s: %q", key, got)
		}
	}
}
