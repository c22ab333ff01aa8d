package watch

import "testing"

func TestOutage(t *testing.T) {
	type event struct {
		what, resource string
		over           bool
	}
	for name, events := range map[string][]event{
		"one resource":   {{"fails", "services", false}, {"fails", "services", false}, {"succeeds", "services", true}},
		"the last of it": {{"fails", "services", false}, {"fails", "nodes", false}, {"succeeds", "services", false}, {"succeeds", "nodes", true}},
		"refused from the start": {
			{"refused", "servicecidrs", false}, {"fails", "services", false}, {"succeeds", "services", true}, {"refused", "servicecidrs", false},
		},
		"refused at last": {
			{"fails", "servicecidrs", false}, {"fails", "services", false}, {"succeeds", "services", false}, {"refused", "servicecidrs", true},
		},
		"allowed at last": {{"refused", "services", false}, {"succeeds", "services", true}},
		"twice": {
			{"fails", "services", false}, {"succeeds", "services", true}, {"fails", "services", false}, {"succeeds", "services", true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var o outage
			for i, e := range events {
				switch e.what {
				case "succeeds":
					o.succeeded(e.resource)
				default:
					o.failed(e.resource, e.what == "refused")
				}
				if over := o.takeOver(); over != e.over {
					t.Errorf("event %d, %s %s: over is %t, want %t", i, e.resource, e.what, over, e.over)
				}
			}
		})
	}
}
