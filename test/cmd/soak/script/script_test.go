package script_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/test/cmd/soak/script"
)

func drawn(seed uint64, n int) []script.Event {
	g := script.NewGenerator(seed)
	var events []script.Event
	for range n {
		events = append(events, g.Next())
	}
	return events
}

// TestText: a script is its text, and a seed is its script.
func TestText(t *testing.T) {
	verbs := map[string]bool{}
	for seed := range uint64(20) {
		events := drawn(seed, 500)
		if events[0].Verb != script.World {
			t.Errorf("seed %d begins with %v", seed, events[0])
		}
		var text strings.Builder
		if err := script.Write(&text, events); err != nil {
			t.Fatal(err)
		}
		read, err := script.Parse(strings.NewReader("# a comment\n\n" + text.String()))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(events, read); diff != "" {
			t.Fatalf("seed %d (-drawn +read):\n%s", seed, diff)
		}
		if diff := cmp.Diff(events, drawn(seed, 500)); diff != "" {
			t.Fatalf("seed %d, drawn twice:\n%s", seed, diff)
		}
		for _, e := range events {
			verbs[e.Verb] = true
		}
	}
	if len(verbs) < 24 {
		t.Errorf("only %d kinds of events were drawn: %v", len(verbs), verbs)
	}
	if cmp.Equal(drawn(1, 100), drawn(2, 100)) {
		t.Error("two seeds give the same script")
	}
}

// TestAddresses: no two Services of a script have one address at a time. Otherwise the API
// server would refuse the second one.
func TestAddresses(t *testing.T) {
	for seed := range uint64(20) {
		holders, kept := map[string]string{}, map[string]string(nil)
		for i, e := range drawn(seed, 1000) {
			name := e.Get("name")
			switch e.Verb {
			case script.Service:
				release(holders, name)
				if other := holders[e.Get("at")]; other != "" {
					t.Fatalf("seed %d, event %d, %v: %s has the address", seed, i, e, other)
				}
				holders[e.Get("at")] = name
			case script.Delete:
				release(holders, name)
			case script.Backup:
				kept = clone(holders)
			case script.Restore:
				holders = clone(kept)
			}
		}
	}
}

func release(holders map[string]string, name string) {
	for at, holder := range holders {
		if holder == name {
			delete(holders, at)
		}
	}
}

func clone(m map[string]string) map[string]string {
	c := map[string]string{}
	for k, v := range m {
		c[k] = v
	}
	return c
}

func TestUnknown(t *testing.T) {
	if _, err := script.Parse(strings.NewReader("world\nexplode n=1\n")); err == nil || !strings.Contains(err.Error(),
		"line 2") {
		t.Errorf("error %v", err)
	}
	e := script.New(script.Endpoints, "name=web", "pods=", "n=x")
	if e.List("pods") != nil || e.Int("n") != 0 || e.Get("none") != "" {
		t.Errorf("arguments of %v", e)
	}
}

// TestReduce finds the two events that matter among many, in their order.
func TestReduce(t *testing.T) {
	events := drawn(7, 120)
	events[40], events[90] = script.New(script.Flush), script.New(script.Full, "ms=15")
	plays := 0
	fails := func(some []script.Event) (bool, error) {
		if plays++; some[0].Verb != script.World {
			t.Fatalf("a script begins with %v", some[0])
		}
		at := slices.IndexFunc(some, func(e script.Event) bool { return e.String() == events[40].String() })
		return at >= 0 && slices.ContainsFunc(some[at:], func(e script.Event) bool {
			return e.String() == events[90].String()
		}), nil
	}
	got, err := script.Reduce(events, fails)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]script.Event{events[0], events[40], events[90]}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if plays > 120 {
		t.Errorf("%d plays for a script of 120 events", plays)
	}

	broken := errors.New("broken")
	got, err = script.Reduce(events, func([]script.Event) (bool, error) { return false, broken })
	if !errors.Is(err, broken) || len(got) != len(events) {
		t.Errorf("after an error: %d events, %v", len(got), err)
	}
}
