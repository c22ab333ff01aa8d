package result_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/bench/result"
)

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0001234: "0.000123", 0.4021: "0.402", 1: "1.00", 3.6: "3.60", 13.94: "13.9", 99.96: "100.0", 179.7: "180",
		12_345.6: "12,346", -1234: "-1,234",
	} {
		if got := result.Figure(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

// TestQuantiles: the quantiles match their plain definition, on samples where a mistake
// would show.
func TestQuantiles(t *testing.T) {
	var samples []float64
	for i := range 200 {
		samples = append(samples, float64(199-i))
	}
	want := map[string]float64{result.P50: 99, result.P99: 197, result.Min: 0, result.Max: 199, result.Samples: 200}
	if diff := cmp.Diff(want, result.Quantiles(samples)); diff != "" {
		t.Errorf("quantiles (-want +got):\n%s", diff)
	}
	one := map[string]float64{result.P50: 7, result.P99: 7, result.Min: 7, result.Max: 7, result.Samples: 1}
	if diff := cmp.Diff(one, result.Quantiles([]float64{7})); diff != "" {
		t.Errorf("quantiles of one (-want +got):\n%s", diff)
	}
	if got := result.Quantiles(nil); got != nil {
		t.Errorf("quantiles of none: %v", got)
	}
}

func TestWriteRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	r := &result.Report{Facts: result.Facts{CPU: "a", Versions: map[string]string{"nft": "1"}},
		Started: time.Unix(1_700_000_000, 0).UTC()}
	r.Put(result.Cell{Question: "q", Backend: "b", Size: "s", Values: map[string]float64{result.Value: 1}})
	r.Put(result.Cell{Question: "q", Backend: "c", Size: "s", Over: true})
	r.Put(result.Cell{Question: "q", Backend: "b", Size: "s", Failed: "later"})
	r.Judge()
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := result.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("report (-written +read):\n%s", diff)
	}
	if len(got.Cells) != 2 || got.Cells[0].Failed != "later" {
		t.Errorf("cells %+v: the second of one place replaces the first", got.Cells)
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 1 {
		t.Errorf("files left: %v", files)
	}
}

// TestNoFigure: a cell that cannot be measured, or was not begun, has no figure, whatever
// it had before. Its reason is one line.
func TestNoFigure(t *testing.T) {
	had := result.Cell{
		Question: "q", Backend: "b", Size: "s", Services: 1, Endpoints: 2, Unit: "ms", Note: "n",
		Values: map[string]float64{result.Value: 1},
	}
	frame := result.Cell{Question: "q", Backend: "b", Size: "s", Services: 1, Endpoints: 2}
	failed, notAsked, notBegun := had, had, had
	failed.Over = true
	failed.Fail(errors.New("line\n\tline"))
	notAsked.Fail(nil)
	notBegun.NotBegun(errors.New("no first program"))
	for _, c := range []struct {
		got  result.Cell
		want func(*result.Cell)
	}{
		{failed, func(c *result.Cell) { c.Failed = "line line" }},
		{notAsked, func(c *result.Cell) { c.Failed = "not measured" }},
		{notBegun, func(c *result.Cell) { c.Over, c.Note = true, "no first program" }},
	} {
		want := frame
		c.want(&want)
		if diff := cmp.Diff(want, c.got); diff != "" {
			t.Errorf("cell (-want +got):\n%s", diff)
		}
	}
}

func TestOrderOfQuestions(t *testing.T) {
	var r result.Report
	for _, q := range []string{"z", result.PeakMemory, "a", result.FirstProgram} {
		r.Put(result.Cell{Question: q})
	}
	want := []string{result.FirstProgram, result.PeakMemory, "z", "a"}
	if diff := cmp.Diff(want, r.Questions()); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
}

// TestMachine: the facts about this machine are there.
func TestMachine(t *testing.T) {
	f, err := result.Machine()
	if err != nil {
		t.Fatal(err)
	}
	if f.CPU == "" || f.Cores < 1 || f.Memory < 100 || f.Kernel == "" || f.Load == "" {
		t.Errorf("facts %+v", f)
	}
}
