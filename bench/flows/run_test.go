package flows

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
	mu    sync.Mutex
	cells []result.Cell
}

func (r *recorded) Put(c result.Cell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cells = append(r.cells, c)
}

func (r *recorded) Doing(string)           {}
func (r *recorded) Version(string, string) {}

// TestRun: at a tiny size the run puts every announced cell once. If the proxy can run,
// each cell has a figure. The test does not judge the figures.
func TestRun(t *testing.T) {
	controlplane.Require(t)
	binary := filepath.Join(t.TempDir(), "nftproxy")
	if err := child.Build(binary, "../..", "./cmd/nftproxy"); err != nil {
		t.Fatal(err)
	}
	c := Full(proxies.Setup{NFTProxy: binary, Limit: 2 * time.Minute, Log: os.Stderr})
	c.Sizes, c.Endpoints = []int{500}, 5
	var sink recorded
	if err := Run(t.Context(), c, &sink); err != nil {
		t.Fatal(err)
	}
	if want := c.Cells(); len(sink.cells) != want {
		t.Errorf("%d cells; %d were announced", len(sink.cells), want)
	}
	for _, cell := range sink.cells {
		if v, found := cell.Main(); cell.Backend == result.NFTProxy && (cell.Failed != "" || !found || v <= 0) {
			t.Errorf("%+v", cell)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []Config{
		{Sizes: []int{0}, Endpoints: 1}, {Sizes: []int{maxFlows + 1}, Endpoints: 1}, {Sizes: []int{1}}, {Sizes: []int{1}, Endpoints: maxEndpoints + 1},
	} {
		if c.Validate() == nil {
			t.Errorf("%+v is valid", c)
		}
	}
	if err := Full(proxies.Setup{}).Validate(); err != nil {
		t.Error(err)
	}
}
