package result

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the goldens again")

// fixed is a report of invented figures that has everything a report can have.
func fixed() *Report {
	r := &Report{
		Facts: Facts{
			CPU: "Example CPU", Cores: 2, Memory: 25_000, Kernel: "6.18.0", Go: "go1.26", Load: "0.10 0.20 0.30",
			Versions: map[string]string{"nft": "1.0.6", "kube-proxy": "v1.37.2"},
		},
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Took: 1234, Quick: true,
		LeftOut: []string{"all sizes but three"},
	}
	sizes := []struct {
		name                string
		services, endpoints int
	}{{"1,000x10", 1000, 10_000}, {"10,000x10", 10_000, 100_000}, {"44,000x1", 44_000, 44_000}}
	for i, s := range sizes {
		cell := func(question, backend, unit string, values map[string]float64) *Cell {
			r.Put(Cell{Question: question, Backend: backend, Size: s.name, Services: s.services, Endpoints: s.endpoints,
				Unit: unit, Values: values})
			return r.Cell(question, backend, s.name)
		}
		grown := float64(i + 1)
		cell(FirstProgram, BareNetlink, "s", map[string]float64{Value: 0.09 * grown})
		cell(FirstProgram, NFTProxy, "s", map[string]float64{Value: 0.2 * grown, "compile": 0.1, "commit": 0.06 * grown,
			"encode": 0.01})
		slow := cell(FirstProgram, KubeProxyNFTables, "s", map[string]float64{Value: 3 * grown * grown})
		refused := cell(FirstProgram, KubeProxyIPTables, "", nil)
		refused.Failed = "no iptables command"
		if i == 2 {
			slow.Over, slow.Values = true, map[string]float64{Value: 180}
			cell(ChangeInside, KubeProxyNFTables, "ms", nil).NotBegun(errors.New("no first program"))
		}
		for _, q := range []string{Restart, ChangeInside} {
			cell(q, NFTProxy, "ms", map[string]float64{P50: 0.2 * grown, P99: 0.9, Min: 0.1, Samples: 100, "encode": 0.01,
				"commit": 0.05 * grown})
		}
		cell(Restart, BareNetlink, "ms", map[string]float64{P50: 0.05 * grown, P99: 0.08})
		cell("a question of another part", NFTProxy, "Gbit/s", map[string]float64{Value: 12.5}).Note = "one stream"
	}
	r.Judge()
	return r
}

func TestTables(t *testing.T) {
	var b bytes.Buffer
	if err := Tables(&b, fixed()); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "tables.txt")
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("tables (-want +got), -update writes them anew:\n%s", diff)
	}
}

// TestPublished: the tables in docs/bench are those of the report there. -update writes both anew.
func TestPublished(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "bench")
	r, err := Read(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	r.Judge()
	if err := Tables(&b, r); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := errors.Join(r.Write(filepath.Join(dir, "report.json")), os.WriteFile(filepath.Join(dir, "tables.txt"),
			b.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	tables, err := os.ReadFile(filepath.Join(dir, "tables.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(tables), b.String()); diff != "" {
		t.Errorf("tables (-have +want):\n%s", diff)
	}
}
