package scenario_test

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nftproxy/look/explain"
	"nftproxy/look/explain/live"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/test/scenario"
)

// checkExplained explains each flow of a step by the tables in the world's kernel, after the flows were
// sent there and did what they want. The explanation has to say the same. With the step's objects it has to find
// no difference between them and the tables.
func checkExplained(t *testing.T, world *scenario.Stage, step *scenario.Step, snapshot service.Snapshot) {
	t.Helper()
	err := world.Node.Do(func() error {
		node, err := live.Look(t.Context(), ruleset.DefaultTable)
		if err != nil {
			return err
		}
		defer node.Close()
		for _, f := range step.Flows {
			if err := checkFlowExplained(t.Context(), node, world, f, &snapshot); err != nil {
				t.Errorf("explain %s: %v", f.Path(), err)
			}
		}
		for _, f := range step.Packets {
			// Other programs change them. The explanation names the chains that may.
			e, err := explainFlow(t.Context(), node, f, nil)
			if err != nil {
				return err
			}
			if err := sameOutcome(world, f, &e); err != nil && !endsClosed(step, &e) && !slices.ContainsFunc(e.Others,
				func(o explain.Other) bool { return !o.Harmless() }) {
				t.Errorf("explain %s: %v, and no chain of another program is named:\n%s", f.Path(), err, e.Text(true))
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// endsClosed says whether no process listens on an endpoint, which then refuses the flow by itself.
func endsClosed(step *scenario.Step, e *explain.Explanation) bool {
	return slices.ContainsFunc(step.Closed, func(at netip.AddrPort) bool {
		return slices.ContainsFunc(e.Endpoints, func(t explain.Target) bool { return t.Address == at.String() })
	})
}

// explainFlow asks as the command does, by address.
func explainFlow(ctx context.Context, node *live.Node, f scenario.Flow,
	objects *service.Snapshot) (explain.Explanation, error) {
	p, err := f.Packet("")
	if err != nil {
		return explain.Explanation{}, err
	}
	q, err := node.Ask(explain.Origin{Addr: f.Source.Addr()}, explain.Destination{To: f.Destination, Protocol: p.Protocol})
	if err != nil {
		return explain.Explanation{}, err
	}
	return node.Explain(ctx, q, objects, nil, "the step's objects")
}

func checkFlowExplained(ctx context.Context, node *live.Node, world *scenario.Stage, f scenario.Flow,
	snapshot *service.Snapshot) error {
	for _, objects := range []*service.Snapshot{nil, snapshot} {
		e, err := explainFlow(ctx, node, f, objects)
		if err != nil {
			return err
		}
		if e.Packet.FromNode != (f.Origin == scenario.Node) {
			return fmt.Errorf("asked about a packet from %s", e.Packet.From)
		}
		text := e.Text(true)
		if err := sameOutcome(world, f, &e); err != nil {
			return fmt.Errorf("%w:\n%s", err, text)
		}
		if e.Summary == "" || e.Outcome != explain.Endpoint && len(e.Causes) == 0 {
			return fmt.Errorf("no summary or no cause:\n%s", text)
		}
		for _, wrong := range []string{"is not nftproxy's", "the tables differ", "cannot tell", "no process owns"} {
			if strings.Contains(text, wrong) {
				return fmt.Errorf("says %q:\n%s", wrong, text)
			}
		}
	}
	return nil
}

// sameOutcome says where the explanation differs from what the flow wants.
func sameOutcome(world *scenario.Stage, f scenario.Flow, e *explain.Explanation) error {
	want := map[scenario.Fate]explain.Outcome{
		scenario.Translated: explain.Endpoint, scenario.Refused: explain.Refused, scenario.Dropped: explain.Dropped,
		scenario.Untouched: explain.Untouched, scenario.Echoed: explain.Endpoint,
	}[f.Want.Fate]
	if f.Protocol == scenario.HTTP {
		want = explain.Untouched // the proxy answers by itself, or nobody does
	}
	if e.Outcome != want {
		return fmt.Errorf("want %s, explained as %s", f.Want, e.Outcome)
	}
	switch e.Outcome {
	case explain.Endpoint:
		return sameEndpoints(world, f, e)
	case explain.Refused:
		if by := e.Results[0].By; (by == "tcp reset") != (f.Protocol == "tcp") || len(e.Results) != 1 {
			return fmt.Errorf("want %s, explained as refused by %s", f.Want, by)
		}
	}
	return nil
}

func sameEndpoints(world *scenario.Stage, f scenario.Flow, e *explain.Explanation) error {
	var have []string
	sum := 0.0
	for _, t := range e.Endpoints {
		text := t.Address
		if t.Masqueraded {
			text += " masqueraded"
		}
		if t.Masqueraded != (t.MasqueradedBy != "") {
			return fmt.Errorf("endpoint %s is masqueraded by %q", text, t.MasqueradedBy)
		}
		have = append(have, text)
		sum += t.Chance
	}
	if math.Abs(sum-1) > 1e-9 {
		return fmt.Errorf("the chances add up to %v", sum)
	}
	var want []string
	for _, t := range f.Want.Targets {
		t.As = netip.Addr{} // explanations do not name it
		want = append(want, t.String())
	}
	if f.Want.Fate == scenario.Echoed {
		want = []string{map[bool]string{false: "192.168.0.2", true: "2001:db8::1"}[f.Destination.Addr().Is6()]}
	}
	if f.Want.Sticky {
		last, known := world.Last(f)
		if !known || e.Affinity == nil || e.Affinity.Endpoint != last.String() || len(have) != 1 ||
			!slices.Contains(want, have[0]) {
			return fmt.Errorf("want the remembered %s, explained as %v, %+v", last, have, e.Affinity)
		}
		if e.Affinity.ExpiresSeconds <= 0 {
			return fmt.Errorf("the remembered client has %d s left", e.Affinity.ExpiresSeconds)
		}
		return nil
	}
	slices.Sort(want)
	slices.Sort(have)
	if f.Source.Port() != 0 && len(want) == 1 && slices.Contains(have, want[0]) {
		return nil // the question has no source port, by which the endpoint may be chosen
	}
	if !slices.Equal(want, have) {
		return fmt.Errorf("want %v, explained as %v", want, have)
	}
	return nil
}
