package metrics

import (
	"fmt"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/model/flows"
	"nftproxy/model/service"
)

// TestFlowsWhileGathered: Observe and the counts may share a lock, while a scrape has more series than its channel.
func TestFlowsWhileGathered(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	f := NewFlows(registry)
	var mu sync.Mutex
	var open int
	f.Count(func() flows.Counts {
		mu.Lock()
		defer mu.Unlock()
		return flows.Counts{Open: open}
	})
	const others = 2000
	other := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "other"}, []string{"n"})
	for i := range others {
		other.WithLabelValues(fmt.Sprint(i))
	}
	registry.MustRegister(other)
	observe := func(i int) {
		mu.Lock()
		defer mu.Unlock()
		open = i
		f.Observe(flows.Change{Settled: true, Finished: true, Flow: flows.Flow{Weight: 1, Result: flows.Answered,
			Service: service.Name(fmt.Sprintf("a/%d", i%(2*namedServices)))}})
	}
	for i := range 2 * namedServices {
		observe(i)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				observe(i)
			}
		}
	}()
	for range 30 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range families {
			if m.GetName() == "nftproxy_flow_answer_seconds" && len(m.Metric) != namedServices+1 {
				t.Fatalf("%d series, want %d", len(m.Metric), namedServices+1)
			}
		}
	}
	close(stop)
	<-done
}

// TestFlowsRefusalsAreNoAnswers: only answers are in the histogram.
func TestFlowsRefusalsAreNoAnswers(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	f := NewFlows(registry)
	for result, seconds := range map[flows.Result]float64{flows.Answered: 2, flows.Refused: 0.00005} {
		f.Observe(flows.Change{Settled: true, Flow: flows.Flow{Weight: 4, Result: result, Service: "a/b",
			AnswerSeconds: &seconds}})
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families {
		if m.GetName() != "nftproxy_flow_answer_seconds" {
			continue
		}
		for _, series := range m.Metric {
			if series.Label[0].GetValue() != "a/b" {
				continue
			}
			if h := series.GetHistogram(); h.GetSampleCount() != 4 || h.GetSampleSum() != 8 {
				t.Errorf("the histogram is %v", h)
			}
			return
		}
	}
	t.Error("no histogram")
}
