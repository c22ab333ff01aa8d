package result_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/bench/result"
)

// piece returns a report with one cell, of a machine and one program.
func piece(size string, v float64, program string) *result.Report {
	r := &result.Report{
		Facts: result.Facts{
			CPU: "a", Cores: 2, Memory: 100, Kernel: "6", Go: "go1", Load: program, Versions: map[string]string{program: "1"},
		},
		Started: time.Unix(1_700_000_000, 0), Took: v, LeftOut: []string{"both", program},
	}
	r.Put(cell(result.FirstProgram, result.NFTProxy, size, value(v)))
	return r
}

// TestAdd: cells that were measured again are new, and all other cells stay.
func TestAdd(t *testing.T) {
	first, second := piece(result.Small, 1, "nft"), piece(result.Usual, 2, "iptables")
	second.Put(cell(result.FirstProgram, result.BareNetlink, result.Usual, value(1)))
	again := piece(result.Usual, 7, "nft")
	again.Started = again.Started.Add(time.Hour)
	got := first
	for _, later := range []*result.Report{second, again} {
		var err error
		if got, err = got.Add(later); err != nil {
			t.Fatal(err)
		}
	}
	want := piece(result.Small, 1, "nft")
	want.Took = 1 + 2 + 7
	want.Facts.Versions["iptables"] = "1"
	want.LeftOut = append(want.LeftOut, "iptables")
	want.Put(cell(result.FirstProgram, result.NFTProxy, result.Usual, value(7)))
	want.Put(cell(result.FirstProgram, result.BareNetlink, result.Usual, value(1)))
	want.Judge()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("three pieces (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(piece(result.Small, 1, "nft"), first); diff != "" {
		t.Errorf("the first piece has changed (-want +got):\n%s", diff)
	}
}

// TestAddOther: figures that cannot be compared are not added.
func TestAddOther(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*result.Report)
		want   string
	}{
		"processor": {func(r *result.Report) { r.Facts.CPU = "b" }, "processor was a and is b"},
		"cores":     {func(r *result.Report) { r.Facts.Cores = 4 }, "number of cores was 2 and is 4"},
		"memory":    {func(r *result.Report) { r.Facts.Memory = 200 }, "memory in MB was 100 and is 200"},
		"kernel":    {func(r *result.Report) { r.Facts.Kernel = "7" }, "kernel was 6 and is 7"},
		"go":        {func(r *result.Report) { r.Facts.Go = "go2" }, "Go was go1 and is go2"},
		"version":   {func(r *result.Report) { r.Facts.Versions["nft"] = "2" }, "another nft: its version was 1 and is 2"},
		"quick":     {func(r *result.Report) { r.Quick = true }, "quick run"},
	} {
		first, later := piece(result.Small, 1, "nft"), piece(result.Usual, 2, "nft")
		before := maps.Clone(first.Facts.Versions)
		test.change(later)
		if _, err := first.Add(later); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
		if diff := cmp.Diff(before, first.Facts.Versions); diff != "" {
			t.Errorf("%s: versions of the first (-before +after):\n%s", name, diff)
		}
	}
}
