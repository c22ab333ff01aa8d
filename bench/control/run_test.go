package control

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
)

// recorded is a sink for tests.
type recorded struct {
	mu     sync.Mutex
	report result.Report
	puts   int
}

func (r *recorded) Put(c result.Cell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.puts++
	r.report.Put(c)
}

func (r *recorded) Doing(string)           {}
func (r *recorded) Version(string, string) {}

// TestRun: at a tiny size the run puts every announced cell once, with a figure, and so
// does the run that asks what a node pays. The test does not judge the figures.
func TestRun(t *testing.T) {
	controlplane.Require(t)
	binary := filepath.Join(t.TempDir(), "nftproxy")
	if err := child.Build(binary, "../..", "./cmd/nftproxy"); err != nil {
		t.Fatal(err)
	}
	size, err := Find("20x5")
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []bool{false, true} {
		c := Config{
			Setup: proxies.Setup{NFTProxy: binary, Only: []string{result.NFTProxy}, Limit: time.Minute, Log: os.Stderr},
			Sizes: []Size{size}, Node: node,
			Samples: Samples{Starts: 2, Changes: 5, Churn: time.Second, Budget: time.Minute, Node: time.Second},
		}
		var sink recorded
		if err := Run(t.Context(), c, &sink); err != nil {
			t.Fatal(err)
		}
		if want := c.Cells(); sink.puts != want || len(sink.report.Cells) != want {
			t.Errorf("%d cells, put %d times; %d were announced", len(sink.report.Cells), sink.puts, want)
		}
		for _, cell := range sink.report.Cells {
			if v, found := cell.Main(); cell.Failed != "" || cell.Over || !found || v <= 0 {
				t.Errorf("%+v", cell)
			}
		}
	}
}
