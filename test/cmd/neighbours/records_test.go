package main

import (
	"net/netip"
	"slices"
	"testing"

	modelflows "nftproxy/model/flows"
)

// TestDifferences: a connection without a flow, with two, and with another result is named; all others are not.
func TestDifferences(t *testing.T) {
	at := func(port uint16, result modelflows.Result) connection {
		return connection{"TCP", netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port), result}
	}
	asked := map[connection]int{at(1, resultOf(kept)): 2, at(2, resultOf(hidden)): 1, at(3, resultOf(refused)): 1,
		at(4, resultOf("timed out")): 1}
	seen := map[connection]int{at(1, modelflows.Answered): 2, at(2, modelflows.Answered): 2,
		at(4, modelflows.Refused): 1}
	want := []string{
		"TCP to 10.96.0.1:2, answered: 1 connections, 2 flows",
		"TCP to 10.96.0.1:3, refused: 1 connections, 0 flows",
		"TCP to 10.96.0.1:4, refused: 0 connections, 1 flows",
		"TCP to 10.96.0.1:4, unanswered: 1 connections, 0 flows",
	}
	if got := differences(asked, seen); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := differences(asked, asked); len(got) > 0 {
		t.Errorf("of the same: %q", got)
	}
}

// TestUnlike: lines that only one record has, or as often, are faults, and the row is bad.
func TestUnlike(t *testing.T) {
	want := []string{"only with off: 2: b", "only with 1/1: 1: b", "only with 1/1: 1: c"}
	got := unlike(counted([]string{"b", "a", "b"}), counted([]string{"c", "b", "a"}))
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for _, c := range []struct {
		faults []string
		want   verdict
	}{{nil, verdict{true, "works, also with flows"}}, {want, verdict{false, "does not: with flows, 3 lines differ"}}} {
		r := result{Events: []outcome{{}}, Record: &record{Faults: c.faults}}
		if got := r.verdict(); got != c.want {
			t.Errorf("%d faults: %+v", len(c.faults), got)
		}
	}
}
