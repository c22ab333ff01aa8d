package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The backends, by their names in tables and pictures.
const (
	NFTProxy          = "nftproxy"
	KubeProxyNFTables = "kube-proxy nftables"
	// KubeProxyNewNFT runs a newer nft than the system's.
	KubeProxyNewNFT   = "kube-proxy nftables (newer nft)"
	KubeProxyLegacy   = "kube-proxy iptables-legacy"
	KubeProxyIPTables = "kube-proxy iptables-nft"
	// Earlier is another build of nftproxy, from before a change.
	Earlier       = "nftproxy, earlier"
	BareNetlink   = "bare netlink"
	NoProxy       = "no proxy"
	OneStaticRule = "one static rule"
)

// KubeProxies lists the backends that are kube-proxy, in the order of the tables.
func KubeProxies() []string {
	return []string{KubeProxyNFTables, KubeProxyNewNFT, KubeProxyLegacy, KubeProxyIPTables}
}

// The keys of Cell.Values that tables and pictures know. Any other key names a part of
// the whole, such as "compile".
const (
	Value   = "value"
	P50     = "p50"
	P99     = "p99"
	Min     = "min"
	Max     = "max"
	Samples = "samples"
	// WritesASecond is the rate that the changes really had.
	WritesASecond = "writes a second"
)

// Report is one run.
type Report struct {
	Facts   Facts     `json:"facts"`
	Started time.Time `json:"started"`
	// Took is how long the run was, in seconds.
	Took float64 `json:"took"`
	// Quick says that the run was a short one. LeftOut says what it left out.
	Quick   bool     `json:"quick,omitempty"`
	LeftOut []string `json:"leftOut,omitempty"`
	Cells   []Cell   `json:"cells"`
	Targets []Target `json:"targets"`
}

// Cell is one measurement of one backend at one size.
type Cell struct {
	// Question is what was asked, such as FirstProgram. Each has a table.
	Question string `json:"question"`
	Backend  string `json:"backend"`
	// Size is, for example, "10,000x10".
	Size      string `json:"size"`
	Services  int    `json:"services"`
	Endpoints int    `json:"endpoints"`
	// Unit is "s", "ms", "us", "MB" (10^6 bytes), "1/s", "Gbit/s" or "cores".
	Unit   string             `json:"unit"`
	Values map[string]float64 `json:"values,omitempty"`
	// Over says that the measurement was stopped at the limit, and Values hold that
	// limit. Without Values it was not even begun, since an earlier step took longer than
	// the limit: Note names that step.
	Over bool `json:"over,omitempty"`
	// Failed says why the cell could not be measured. Such a cell is printed as well.
	Failed string `json:"failed,omitempty"`
	// Note has what a reader must know about the figure.
	Note string `json:"note,omitempty"`
}

// Main is the value that stands for the cell: Value, or P50 without one.
func (c *Cell) Main() (float64, bool) {
	for _, key := range []string{Value, P50} {
		if v, found := c.Values[key]; found {
			return v, true
		}
	}
	return 0, false
}

// Fail turns the cell into one without a figure, which says why.
func (c *Cell) Fail(err error) {
	c.Unit, c.Values, c.Over, c.Note = "", nil, false, ""
	c.Failed = "not measured"
	if err != nil {
		c.Failed = oneLine(err)
	}
}

// NotBegun turns the cell into one that the limit did not allow to begin.
func (c *Cell) NotBegun(err error) {
	c.Fail(err)
	c.Over, c.Note, c.Failed = true, c.Failed, ""
}

func oneLine(err error) string {
	const most = 200
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > most {
		text = text[:most] + "..."
	}
	return text
}

// Cell returns the measurement of a backend at a size, or nil.
func (r *Report) Cell(question, backend, size string) *Cell {
	for i := range r.Cells {
		if c := &r.Cells[i]; c.Question == question && c.Backend == backend && c.Size == size {
			return c
		}
	}
	return nil
}

// Put adds a cell. It replaces a cell with the same question, backend and size.
func (r *Report) Put(c Cell) {
	if there := r.Cell(c.Question, c.Backend, c.Size); there != nil {
		*there = c
		return
	}
	r.Cells = append(r.Cells, c)
}

// Questions lists the questions in the order of Asked; others follow in the
// order in which they were first answered.
func (r *Report) Questions() []string {
	var there, ordered []string
	for _, c := range r.Cells {
		if !slices.Contains(there, c.Question) {
			there = append(there, c.Question)
		}
	}
	for _, q := range Asked() {
		if slices.Contains(there, q.Name) {
			ordered = append(ordered, q.Name)
		}
	}
	for _, q := range there {
		if !slices.Contains(ordered, q) {
			ordered = append(ordered, q)
		}
	}
	return ordered
}

// Of lists the cells of one question in the order in which they were measured.
func (r *Report) Of(question string) []Cell {
	var cells []Cell
	for _, c := range r.Cells {
		if c.Question == question {
			cells = append(cells, c)
		}
	}
	return cells
}

// Quantiles are the values of a cell with several samples; nil without samples.
func Quantiles(samples []float64) map[string]float64 {
	if len(samples) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(samples))
	return map[string]float64{
		P50: quantile(sorted, 50), P99: quantile(sorted, 99),
		Min: sorted[0], Max: sorted[len(sorted)-1], Samples: float64(len(sorted)),
	}
}

// Median is the smallest sample that at least half of the samples do not exceed; 0
// without samples.
func Median(samples []float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	return quantile(slices.Sorted(slices.Values(samples)), 50)
}

// quantile is the smallest sample that at least the given percentage of samples do not
// exceed.
func quantile(sorted []float64, percent int) float64 {
	return sorted[(len(sorted)*percent+99)/100-1]
}

// Read reads a report from a file.
func Read(path string) (*Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("read report %s: %w", path, err)
	}
	return &r, nil
}

// Write writes the report to a file. The file is complete at any time.
func (r *Report) Write(path string) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	// One line for each cell, so that a run changes the lines of what it measured. No string in JSON has a line break.
	b = regexp.MustCompile(`\n\t{3,}`).ReplaceAll(b, []byte(" "))
	b = bytes.ReplaceAll(b, []byte("\n\t\t}"), []byte(" }"))
	temporary := path + ".new"
	if err := os.WriteFile(temporary, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return errors.Join(fmt.Errorf("write report: %w", err), ignoreMissing(os.Remove(temporary)))
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Count writes a number with commas: "10,000".
func Count(n int) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// Figure writes a value with three significant digits, or fewer if they suffice: "0.402",
// "13.9", "1,234".
func Figure(v float64) string {
	switch abs := max(v, -v); {
	case v == 0:
		return "0"
	case abs >= 100:
		if v < 0 {
			return "-" + Count(int(-v+0.5))
		}
		return Count(int(v + 0.5))
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	case abs >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
