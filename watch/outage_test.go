package watch

import (
	"strings"
	"testing"
)

// TestOutage goes through events, each with the news that it causes: the resources that
// are behind, "all" when all are up to date, and "" for no news.
func TestOutage(t *testing.T) {
	type event struct{ what, resource, news string }
	for name, events := range map[string][]event{
		"one resource": {{"fails", "services", ""}, {"fails", "services", ""}, {"current", "services", "all"},
			{"current", "services", ""}},
		"the last of it": {{"fails", "services", ""}, {"fails", "nodes", ""}, {"current", "services", "nodes"},
			{"current", "nodes", "all"}},
		"one that is required and has not been asked for": {
			{"required", "endpointslices", ""}, {"fails", "services", ""}, {"current", "services", "endpointslices"},
			{"current", "endpointslices", "all"},
		},
		"refused from the start": {
			{"refused", "servicecidrs", ""}, {"fails", "services", ""}, {"current", "services", "all"},
			{"refused", "servicecidrs", ""},
		},
		"refused at last": {
			{"fails", "servicecidrs", ""}, {"fails", "services", ""}, {"current", "services", "servicecidrs"},
			{"refused", "servicecidrs", "all"},
		},
		"refused for a while": {
			{"current", "endpointslices", ""}, {"current", "services", ""}, {"fails", "services", ""},
			{"fails", "endpointslices", ""},
			{"refused", "endpointslices", ""}, {"current", "services", "endpointslices"}, {"refused", "endpointslices", ""},
			{"current", "endpointslices", "all"},
		},
		"refused without an outage": {{"current", "services", ""}, {"refused", "services", ""}, {"current", "services", ""}},
		"a watch that ends without a failure": {
			{"current", "services", ""}, {"current", "nodes", ""}, {"ends", "services", ""}, {"current", "services", ""},
			{"ends", "services", ""}, {"ends", "nodes", ""}, {"fails", "services", ""}, {"current", "services", "nodes"},
			{"current", "nodes", "all"},
		},
		"twice": {
			{"fails", "services", ""}, {"current", "services", "all"}, {"fails", "services", ""}, {"current", "services", "all"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var o outage
			for i, e := range events {
				switch e.what {
				case "current":
					o.current(e.resource)
				case "ends":
					o.ended(e.resource)
				case "required":
					o.require(e.resource)
				default:
					o.failed(e.resource, e.what == "refused", nil)
				}
				got := ""
				if behind, news := o.takeNews(); news {
					if got = strings.Join(behind, " "); got == "" {
						got = "all"
					}
				}
				if got != e.news {
					t.Errorf("event %d, %s %s: news %q, want %q", i, e.resource, e.what, got, e.news)
				}
			}
		})
	}
}
