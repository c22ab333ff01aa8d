package result

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// dataPlane judges the figures about packets, and what a node pays against an earlier build. Figures of two backends
// that were measured in pairs are compared by the ratio of the pairs. nftproxy's cell has that ratio under PairKey.
func (j judge) dataPlane() []Target {
	var targets []Target
	for _, against := range []string{KubeProxyNFTables, KubeProxyLegacy, KubeProxyIPTables} {
		for _, key := range []string{P50, P99} {
			targets = append(targets, j.noWorse(key, against))
		}
	}
	for _, key := range []string{P50, P99} {
		targets = append(targets, j.everywhere("connection set-up "+key+", against one static dnat rule",
			"at most 1.05x at any size",
			ConnectionSetup, key, OneStaticRule, func(ratio float64, _ int) bool { return ratio <= 1.05 }))
	}
	if j.has(Earlier) {
		for _, key := range []string{P50, P99} {
			targets = append(targets, j.everywhere("connection set-up "+key+", against the earlier build", "no slower",
				ConnectionSetup, key, Earlier, func(ratio float64, _ int) bool { return ratio <= 1+noise }))
		}
		for _, question := range append([]string{StartToProgram, NodeMemory, NodeCPU(0)}, nodeCPUs()...) {
			targets = append(targets, j.everywhere(question+", against the earlier build", "at most 1.05x",
				question, "", Earlier, func(ratio float64, _ int) bool { return ratio <= 1.05 }))
		}
	}
	return targets
}

// has says whether a backend was measured.
func (j judge) has(backend string) bool {
	return slices.ContainsFunc(j.Cells, func(c Cell) bool { return c.Backend == backend })
}

// PairKey is the key under which a cell of nftproxy has the ratio of one of its values to
// that of another backend, measured pair by pair; key is "" for the main value.
func PairKey(key, against string) string { return strings.TrimSpace(key + " against " + against) }

// many is the number of Services from which on nftproxy must set up connections faster
// than kube-proxy. With fewer Services it must be as fast.
const many = 10_000

func (j judge) noWorse(key, against string) Target {
	return j.everywhere("connection set-up "+key+", against "+against, "no worse at any size, better from "+Count(many)+
		" services",
		ConnectionSetup, key, against, func(ratio float64, services int) bool {
			return ratio < 1 || services < many && ratio <= 1+noise
		})
}

// noise is how far two medians of the same thing differ from run to run.
const noise = 0.02

// compared is a ratio, with a text that names what was compared.
type compared struct {
	ratio float64
	of    string
	good  bool
}

// everywhere compares nftproxy with another backend in each cell of the questions that
// begin with a name. It reports the worst ratio.
func (j judge) everywhere(what, want, question, key, against string,
	good func(ratio float64, services int) bool) Target {
	t := Target{What: what, Want: want, Verdict: NotMeasured, Got: "no " + question + " of both"}
	var all []compared
	for _, c := range j.Cells {
		if c.Backend != NFTProxy || c.Question != question && !strings.HasPrefix(c.Question, question+",") {
			continue
		}
		if ratio, found := j.pair(&c, key, against); found {
			way := strings.TrimPrefix(strings.TrimPrefix(c.Question, question), ", ")
			all = append(all, compared{ratio, strings.TrimSpace(way + " at " + c.Size), good(ratio, c.Services)})
		}
	}
	if len(all) == 0 {
		return t
	}
	// A value that should be low is worst where it is highest, and the other way round.
	lowIsGood := good(0, 0)
	slices.SortStableFunc(all, func(a, b compared) int {
		switch {
		case a.good != b.good && a.good:
			return 1
		case a.good != b.good:
			return -1
		case lowIsGood:
			return cmp.Compare(b.ratio, a.ratio)
		}
		return cmp.Compare(a.ratio, b.ratio)
	})
	bad := 0
	for _, c := range all {
		if !c.good {
			bad++
		}
	}
	t.Verdict = verdict(bad == 0)
	t.Got = worst(all, max(1, bad))
	if len(all) > 1 {
		t.Got += fmt.Sprintf("; good in %d of %d", len(all)-bad, len(all))
	}
	return t
}

// worst describes the first ratios of a list: the given number, or as many as fit.
func worst(all []compared, count int) string {
	const most = 3
	var texts []string
	for _, c := range all[:min(count, most)] {
		texts = append(texts, fraction(c.ratio)+" ("+c.of+")")
	}
	return strings.Join(texts, ", ")
}

// pair returns the ratio of nftproxy's value to that of another backend.
func (j judge) pair(c *Cell, key, against string) (float64, bool) {
	if ratio, found := c.Values[PairKey(key, against)]; found {
		return ratio, true
	}
	other := j.Cell(c.Question, against, c.Size)
	if other == nil || other.Failed != "" || c.Failed != "" {
		return 0, false
	}
	value := func(c *Cell) (float64, bool) {
		if key == "" {
			return c.Main()
		}
		v, found := c.Values[key]
		return v, found
	}
	a, foundA := value(c)
	b, foundB := value(other)
	return a / b, foundA && foundB && b != 0
}
