package control

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
)

// TestFlows: at a tiny size the run puts every announced cell once. If the proxy can run,
// each cell has a figure. The test does not judge the figures.
func TestFlows(t *testing.T) {
	controlplane.Require(t)
	binary := filepath.Join(t.TempDir(), "nftproxy")
	if err := child.Build(binary, "../..", "./cmd/nftproxy"); err != nil {
		t.Fatal(err)
	}
	c := FullFlows(proxies.Setup{NFTProxy: binary, Limit: 2 * time.Minute, Log: os.Stderr})
	c.Sizes, c.Endpoints = []int{500}, 5
	var sink recorded
	if err := c.Run(t.Context(), &sink); err != nil {
		t.Fatal(err)
	}
	if want := c.Cells(); sink.puts != want || len(sink.report.Cells) != want {
		t.Errorf("%d cells, put %d times; %d were announced", len(sink.report.Cells), sink.puts, want)
	}
	for _, cell := range sink.report.Cells {
		if v, found := cell.Main(); cell.Backend == result.NFTProxy && (cell.Failed != "" || !found || v <= 0) {
			t.Errorf("%+v", cell)
		}
	}
}

func TestFlowsValidate(t *testing.T) {
	for _, c := range []Flows{
		{Sizes: []int{0}, Endpoints: 1}, {Sizes: []int{maxFlows + 1}, Endpoints: 1}, {Sizes: []int{1}},
		{Sizes: []int{1}, Endpoints: maxReplaced + 1},
	} {
		if c.Validate() == nil {
			t.Errorf("%+v is valid", c)
		}
	}
	if err := FullFlows(proxies.Setup{}).Validate(); err != nil {
		t.Error(err)
	}
}
