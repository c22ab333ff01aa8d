package ejection_test

import (
	"fmt"
	"testing"
	"time"

	"nftproxy/model/ejection"
)

// BenchmarkStep is what a step costs that an answer causes while one endpoint is silent, among Services with 10
// endpoints each; what a look costs that finds a new one, which visits all Services; and what a change of another
// Service costs.
func BenchmarkStep(b *testing.B) {
	for _, services := range []int{1000, 10000} {
		setUp := func(b *testing.B) *world {
			w := newWorld(b)
			for i := range services {
				w.service(fmt.Sprintf("ns-%d/s%d", i%100, i), "own", "a", "b", "c", "d", "e", "a", "b", "c", "d")
			}
			s := w.builder.Snapshot().Services.At("ns-0/s0")
			w.lose(s, 1, true)
			w.within(5*time.Second, "left out", w.traffic("ns-0/s0"), func() bool { return len(w.left()) == 1 })
			return w
		}
		b.Run(fmt.Sprintf("answer/services=%d", services), func(b *testing.B) {
			w := setUp(b)
			for b.Loop() {
				w.now = w.now.Add(time.Second)
				_, asks, _ := w.machine.Step(w.now)
				for _, a := range asks {
					came := w.ask(a)
					w.machine.Answered(w.now, a, came.answer, came.facts)
				}
				w.machine.Step(w.now)
			}
		})
		b.Run(fmt.Sprintf("look/services=%d", services), func(b *testing.B) {
			w := setUp(b)
			to := endpoint(w.builder.Snapshot().Services.At("ns-1/s1"), 2)
			for b.Loop() {
				w.ids++
				w.now = w.now.Add(time.Minute)
				w.machine.Looked(w.now, []ejection.Flow{{ID: w.ids, To: to}})
				w.machine.Looked(w.now, nil) // It has been answered.
				w.machine.Step(w.now)
			}
		})
		b.Run(fmt.Sprintf("change/services=%d", services), func(b *testing.B) {
			w := setUp(b)
			for b.Loop() {
				b.StopTimer()
				next := w.builder.Service("ns-1/s1").Clone()
				next.HealthCheckNodePort++
				w.set(next)
				s := w.builder.Snapshot()
				b.StartTimer()
				w.machine.See(s)
				w.machine.Step(w.now)
			}
		})
	}
}
