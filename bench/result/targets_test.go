package result_test

import (
	"errors"
	"strings"
	"testing"

	"nftproxy/bench/result"
)

func cell(question, backend, size string, values map[string]float64) result.Cell {
	return result.Cell{Question: question, Backend: backend, Size: size, Unit: "s", Values: values}
}

func value(v float64) map[string]float64 { return map[string]float64{result.Value: v} }

func TestTargets(t *testing.T) {
	const (
		ours = result.NFTProxy
		kube = result.KubeProxyNFTables
		rule = result.OneStaticRule
	)
	over := cell(result.FirstProgram, kube, result.Usual, value(180))
	over.Over = true
	stopped := cell(result.FirstProgram, ours, result.Wide, value(0.5))
	stopped.Over = true
	failed := cell(result.FirstProgram, kube, result.Usual, nil)
	failed.Failed = "no such binary"
	notBegun := cell(result.ChangeCPU, kube, result.Usual, nil)
	notBegun.NotBegun(errors.New("no first program within 3m0s"))
	large := func(c result.Cell, services int) result.Cell { c.Services = services; return c }

	for name, test := range map[string]struct {
		what    string // how the target's name begins
		cells   []result.Cell
		verdict result.Verdict
		got     string // part of it
	}{
		"a ratio that is met": {
			"first program, against kube-proxy", []result.Cell{cell(result.FirstProgram, ours, result.Usual, value(0.1)),
				cell(result.FirstProgram, kube, result.Usual, value(4))},
			result.Met, "1/40 (0.1 s against 4.00 s)",
		},
		"a ratio that is not": {
			"first program, against kube-proxy", []result.Cell{cell(result.FirstProgram, ours, result.Usual, value(0.11)),
				cell(result.FirstProgram, kube, result.Usual, value(4))},
			result.NotMet, "1/36.4",
		},
		"the other was stopped, far enough": {
			"first program, against kube-proxy", []result.Cell{cell(result.FirstProgram, ours, result.Usual, value(0.1)), over},
			result.Met, "below 1/1,800 (0.1 s against > 180 s)",
		},
		"the other was stopped too early": {
			"first program, against kube-proxy", []result.Cell{cell(result.FirstProgram, ours, result.Usual, value(10)), over},
			result.NotMeasured, "below 1/18",
		},
		"the other failed": {
			"first program, against kube-proxy", []result.Cell{cell(result.FirstProgram, ours, result.Usual, value(10)), failed},
			result.NotMeasured, "no such binary",
		},
		"the other did not get as far": {
			"CPU per one-endpoint change", []result.Cell{cell(result.ChangeCPU, ours, result.Usual, value(1)), notBegun},
			result.NotMeasured, "> limit, no first program within 3m0s",
		},
		"only another size": {
			"first program, against kube-proxy", []result.Cell{cell(result.FirstProgram, ours, result.Wide, value(0.1)),
				cell(result.FirstProgram, kube, result.Wide, value(4))},
			result.NotMeasured, "no first program of nftproxy at 10,000x10",
		},
		"a quick run": {
			"first program, against kube-proxy nftables (at 1,000x10, not 10,000x10)",
			[]result.Cell{cell(result.FirstProgram, ours, result.Small, value(0.1)), cell(result.FirstProgram, kube,
				result.Small, value(4))},
			result.Met, "1/40",
		},
		"the smallest beside the usual size": {
			"first program, against kube-proxy nftables",
			[]result.Cell{cell(result.FirstProgram, ours, result.Small, value(0.1)), cell(result.FirstProgram, kube,
				result.Usual, value(4))},
			result.NotMeasured, "no first program of nftproxy at 10,000x10",
		},
		"changes that could not be written fast enough": {
			"1,000 endpoint changes a second: lag", []result.Cell{cell(result.Churn1000, ours, result.Usual,
				map[string]float64{result.P99: 5, result.WritesASecond: 900})},
			result.NotMeasured, "only 900 changes a second",
		},
		"changes that could": {
			"1,000 endpoint changes a second: lag", []result.Cell{cell(result.Churn1000, ours, result.Usual,
				map[string]float64{result.P99: 5, result.WritesASecond: 980})},
			result.Met, "p99 5.00 s",
		},
		"stopped itself": {"first program at 5,006x50", []result.Cell{stopped}, result.NotMet, "> 0.5 s"},
		"two bounds, one of them not kept": {
			"one endpoint replaced", []result.Cell{cell(result.ChangeInside, ours, result.Usual,
				map[string]float64{result.P50: 0.2, result.P99: 3})},
			result.NotMet, "p50 0.2 s, p99 3.00 s",
		},
		"growth": {
			"the same at 30,000x10", []result.Cell{
				cell(result.ChangeInside, ours, result.Small, map[string]float64{result.P50: 0.2}), cell(result.ChangeInside, ours,
					result.Largest, map[string]float64{result.P50: 0.3}),
			}, result.Met, "1.5x",
		},
		"a node against the earlier build": {
			"memory at rest, against the earlier build", []result.Cell{
				cell(result.NodeMemory, ours, result.Usual, map[string]float64{result.Value: 110,
					result.PairKey("", result.Earlier): 1.06}),
				cell(result.NodeMemory, result.Earlier, result.Usual, value(110)),
			}, result.NotMet, "1.06x (at 10,000x10)",
		},
		"as fast as kube-proxy where few services are": {
			"connection set-up p50, against kube-proxy nftables", []result.Cell{
				large(cell(result.ConnectionSetup+", pod to cluster IP", ours, "1,000", map[string]float64{result.P50: 1.01}),
					1000),
				large(cell(result.ConnectionSetup+", pod to cluster IP", kube, "1,000", map[string]float64{result.P50: 1}), 1000),
			}, result.Met, "1.01x (pod to cluster IP at 1,000)",
		},
		"as fast where many are": {
			"connection set-up p50, against kube-proxy nftables", []result.Cell{
				large(cell(result.ConnectionSetup, ours, "10,000", map[string]float64{result.P50: 1}), 10_000),
				large(cell(result.ConnectionSetup, kube, "10,000", map[string]float64{result.P50: 1}), 10_000),
			}, result.NotMet, "1x",
		},
		"pairs count, not the quotient of medians": {
			"connection set-up p99, against one static", []result.Cell{
				cell(result.ConnectionSetup, ours, "1", map[string]float64{result.P99: 2, result.PairKey(result.P99, rule): 1.04}),
				cell(result.ConnectionSetup, rule, "1", map[string]float64{result.P99: 1}),
			}, result.Met, "1.04x",
		},
		"the worst of many, where less is better": {
			"connection set-up p50, against one static", []result.Cell{
				cell(result.ConnectionSetup+", a", ours, "1", map[string]float64{result.P50: 1.01}),
				cell(result.ConnectionSetup+", a", rule, "1", map[string]float64{result.P50: 1}),
				cell(result.ConnectionSetup+", b", ours, "1", map[string]float64{result.P50: 1.04}),
				cell(result.ConnectionSetup+", b", rule, "1", map[string]float64{result.P50: 1}),
			}, result.Met, "1.04x (b at 1); good in 2 of 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := result.Report{Cells: test.cells}
			r.Judge()
			matched := 0
			for _, target := range r.Targets {
				if !strings.HasPrefix(target.What, test.what) {
					continue
				}
				matched++
				if target.Verdict != test.verdict || !strings.Contains(target.Got, test.got) {
					t.Errorf("%s: %s, %q; want %s, %q", target.What, target.Verdict, target.Got, test.verdict, test.got)
				}
			}
			if matched != 1 {
				t.Errorf("%d targets begin with %q", matched, test.what)
			}
		})
	}
}

// TestNothingMeasured: without a cell no target is met, and each target says why.
func TestNothingMeasured(t *testing.T) {
	var r result.Report
	r.Judge()
	for _, target := range r.Targets {
		if target.Verdict != result.NotMeasured || target.Got == "" || target.Want == "" {
			t.Errorf("%+v", target)
		}
	}
	if len(r.Targets) < 14 {
		t.Errorf("%d targets", len(r.Targets))
	}
}
