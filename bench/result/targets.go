package result

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict says whether a target is met.
type Verdict string

// The verdicts.
const (
	Met         Verdict = "met"
	NotMet      Verdict = "NOT MET"
	NotMeasured Verdict = "not measured"
)

// Target is one of the project's targets, with the verdict of the run.
type Target struct {
	What string `json:"what"`
	Want string `json:"want"`
	// Got has the figures, or says why there is none.
	Got     string  `json:"got"`
	Verdict Verdict `json:"verdict"`
}

// The sizes that targets name.
const (
	Small   = "1,000x10"
	Usual   = "10,000x10"
	Wide    = "5,006x50"
	Many    = "44,000x1"
	Largest = "30,000x10"

	ManyFlows = "10,000 flows"
	MostFlows = "200,000 flows"
)

// Judge fills in Targets from the cells.
func (r *Report) Judge() {
	j := judge{r, Usual, ""}
	if !slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.Size == Usual }) &&
		slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.Size == Small }) {
		j.usual, j.at = Small, " (at "+Small+", not "+Usual+")"
	}
	r.Targets = append(j.controlPlane(), j.dataPlane()...)
}

// judge works on one report.
type judge struct {
	*Report
	// usual is the size for targets that name none. In a quick run that has nothing else
	// it is the smallest size, and at names it.
	usual, at string
}

func (j judge) controlPlane() []Target {
	return []Target{
		j.ratio("first program, against kube-proxy nftables"+j.at, 1.0/40, FirstProgram, j.usual, Value, NFTProxy,
			KubeProxyNFTables),
		j.ratio("first program, against loading the same elements by bare netlink"+j.at, 2, FirstProgram, j.usual, Value,
			NFTProxy, BareNetlink),
		j.bound("first program at "+Wide, "under 1 s", FirstProgram, Wide, map[string]float64{Value: 1}),
		j.bound("first program at "+Many, "under 1 s", FirstProgram, Many, map[string]float64{Value: 1}),
		j.bound("one endpoint replaced, inside the process"+j.at, "p50 at most 0.3 ms, p99 at most 2 ms", ChangeInside,
			j.usual, map[string]float64{P50: 0.3, P99: 2}),
		j.growth("the same at "+Largest+" against "+Small, 1.5, ChangeInside, Largest, Small),
		j.ratio("CPU per one-endpoint change, against kube-proxy nftables"+j.at, 1.0/1000, ChangeCPU, j.usual, Value,
			NFTProxy, KubeProxyNFTables),
		j.bound("API write to kernel, default minSyncPeriod"+j.at, "p50 at most 15 ms, p99 at most 50 ms", ChangeSeen,
			j.usual, map[string]float64{P50: 15, P99: 50}),
		j.sustained(1000, j.bound("1,000 endpoint changes a second: lag"+j.at, "p99 under 100 ms", Churn1000, j.usual,
			map[string]float64{P99: 100})),
		j.sustained(1000, j.bound("1,000 endpoint changes a second: CPU"+j.at, "under half a core", Churn1000CPU, j.usual,
			map[string]float64{Value: 0.5})),
		j.bound("UDP flows in a rolling update, "+ManyFlows+": sync to last deletion", "p99 under 200 ms", StaleFlows,
			ManyFlows, map[string]float64{P99: 200}),
		j.bound("the same, "+MostFlows, "p99 under 1 s", StaleFlows, MostFlows, map[string]float64{P99: 1000}),
		j.ratio("peak memory, against kube-proxy nftables"+j.at, 1.0/4, PeakMemory, j.usual, Value, NFTProxy,
			KubeProxyNFTables),
	}
}

// ratio compares one value of two backends.
func (j judge) ratio(what string, most float64, question, size, key, backend, against string) Target {
	return j.ratioOf(what, most, question, size, func(c *Cell) (float64, bool) {
		v, found := c.Values[key]
		return v, found
	}, backend, against)
}

func (j judge) ratioOf(what string, most float64, question, size string, value func(*Cell) (float64, bool), backend,
	against string) Target {
	t := Target{What: what, Want: "at most " + fraction(most)}
	return j.compare(t, most, j.Cell(question, backend, size), j.Cell(question, against, size), value,
		question+" of "+backend+" at "+size, question+" of "+against+" at "+size)
}

// growth compares two sizes of nftproxy.
func (j judge) growth(what string, most float64, question, size, against string) Target {
	t := Target{What: what, Want: "at most " + fraction(most)}
	return j.compare(t, most, j.Cell(question, NFTProxy, size), j.Cell(question, NFTProxy, against), (*Cell).Main,
		question+" at "+size, question+" at "+against)
}

func (j judge) compare(t Target, most float64, a, b *Cell, value func(*Cell) (float64, bool), whatA,
	whatB string) Target {
	if missing := unmeasured(a, whatA) + unmeasured(b, whatB); missing != "" {
		t.Got, t.Verdict = strings.TrimSuffix(missing, "; "), NotMeasured
		return t
	}
	va, foundA := value(a)
	vb, foundB := value(b)
	if !foundA || !foundB || vb == 0 {
		t.Got, t.Verdict = "the cells have no such value", NotMeasured
		return t
	}
	ratio := va / vb
	t.Got = fmt.Sprintf("%s (%s against %s)", fraction(ratio), figure(a, va), figure(b, vb))
	switch {
	case a.Over:
		// The ratio is at least this; how much it is, is not known.
		t.Verdict = NotMet
	case b.Over:
		// The other backend was stopped, so the ratio is better than this.
		t.Got = "below " + t.Got
		t.Verdict = NotMeasured
		if ratio <= most {
			t.Verdict = Met
		}
	default:
		t.Verdict = verdict(ratio <= most)
	}
	return t
}

// bound compares nftproxy's values with fixed bounds.
func (j judge) bound(what, want, question, size string, most map[string]float64) Target {
	t := Target{What: what, Want: want, Verdict: Met}
	c := j.Cell(question, NFTProxy, size)
	if missing := unmeasured(c, question+" at "+size); missing != "" {
		t.Got, t.Verdict = strings.TrimSuffix(missing, "; "), NotMeasured
		return t
	}
	var got []string
	for _, key := range []string{Value, P50, P99} {
		limit, asked := most[key]
		if !asked {
			continue
		}
		v, found := c.Values[key]
		if !found || c.Over || v > limit {
			t.Verdict = NotMet
		}
		name := key + " "
		if key == Value {
			name = ""
		}
		got = append(got, name+figure(c, v))
	}
	t.Got = strings.Join(got, ", ")
	return t
}

// sustained takes back a verdict on 1,000 changes a second if the changes could not be
// written that fast.
func (j judge) sustained(rate float64, t Target) Target {
	const enough = 0.95
	c := j.Cell(Churn1000, NFTProxy, j.usual)
	if c == nil || t.Verdict == NotMeasured {
		return t
	}
	if got, found := c.Values[WritesASecond]; found && got < enough*rate {
		t.Got += fmt.Sprintf(", but only %s changes a second could be written", Figure(got))
		t.Verdict = NotMeasured
	}
	return t
}

// unmeasured says why there is no figure; "" if there is one.
func unmeasured(c *Cell, what string) string {
	switch {
	case c == nil:
		return "no " + what + "; "
	case c.Failed != "":
		return what + ": " + c.Failed + "; "
	case c.Over && len(c.Values) == 0:
		return what + ": > limit, " + c.Note + "; "
	}
	return ""
}

func figure(c *Cell, v float64) string {
	over := ""
	if c.Over {
		over = "> "
	}
	return over + Figure(v) + " " + c.Unit
}

func verdict(met bool) Verdict {
	if met {
		return Met
	}
	return NotMet
}

// fraction writes a ratio as people say it: "1/40", "1.5x".
func fraction(ratio float64) string {
	if ratio > 0 && ratio <= 0.5 {
		if inverse := 1 / ratio; inverse >= 100 {
			return "1/" + Figure(inverse)
		}
		return fmt.Sprintf("1/%.3g", 1/ratio)
	}
	return fmt.Sprintf("%.3gx", ratio)
}
