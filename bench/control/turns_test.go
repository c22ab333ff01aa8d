package control

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
)

// TestTurns: two builds have their turns, each round beginning with another one, and the cells have the medians of the
// turns, and of the ratios within a round.
func TestTurns(t *testing.T) {
	var sink recorded
	turns := &turns{Sink: &sink}
	var order []string
	values := map[string][]float64{result.NFTProxy: {1, 30, 4}, result.Earlier: {2, 10, 5}}
	builds := []backend{newBackend(proxies.Proxy{Name: result.NFTProxy, Ours: true}),
		newBackend(proxies.Proxy{Name: result.Earlier, Ours: true})}
	for _, b := range turns.order(builds, 3) {
		order = append(order, b.Name)
		turns.Put(result.Cell{Question: result.NodeMemory, Backend: b.Name, Size: "1x1",
			Values: map[string]float64{result.Value: values[b.Name][0]}})
		values[b.Name] = values[b.Name][1:]
	}
	want := []string{result.NFTProxy, result.Earlier, result.Earlier, result.NFTProxy, result.NFTProxy, result.Earlier}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	got := map[string]map[string]float64{}
	for _, c := range sink.report.Cells {
		got[c.Backend] = c.Values
	}
	wantValues := map[string]map[string]float64{
		result.NFTProxy: {result.Value: 4, result.PairKey("", result.Earlier): 0.8}, result.Earlier: {result.Value: 5},
	}
	if diff := cmp.Diff(wantValues, got); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
	bad := result.Cell{Question: result.NodeMemory, Backend: result.NFTProxy, Size: "1x1"}
	bad.Fail(errors.New("it has ended"))
	if turns.Put(bad); sink.report.Cell(bad.Question, bad.Backend, bad.Size).Failed != "it has ended" {
		t.Error("a turn that failed does not show")
	}
}
