package service

import "testing"

// TestFlowsOf: a Service can have a smaller share than the node's, none, but not a greater one.
func TestFlowsOf(t *testing.T) {
	for _, c := range []struct {
		node, own Flows
		want      int
	}{
		{FlowsAsNode, 1, 0}, {FlowsOff, 1, 0}, {16, FlowsAsNode, 16}, {16, FlowsOff, 0}, {16, 64, 64}, {1024, 1, 1024},
		{1, 1, 1}, {1, 1024, 1024},
	} {
		if got := c.node.Of(&Service{Options: Options{Flows: c.own}}); got != c.want {
			t.Errorf("node %v, Service %v: one of %d, want %d", c.node, c.own, got, c.want)
		}
	}
}
