package ipvs

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// situation is a Service of some endpoints, and the load on it.
type situation struct {
	name string
	// rate is how many connections come in a second, and hold how long one lasts, on average.
	rate float64
	hold time.Duration
	// first is what the first endpoint does with connections; the others serve them.
	first manner
	// replaced and added are how many endpoints leave and come at the rollout: those of the lowest numbers leave.
	replaced, added int
}

// manner is what an endpoint does with connections.
type manner int

const (
	serves  manner = iota
	isBusy         // serves, and takes busyFactor times as long
	refuses        // nobody listens
	resets         // ends each connection as soon as it is open
)

const (
	endpoints  = 4
	busyFactor = 4
	// clients is the number of addresses from which connections come.
	clients = 16
)

// rollout says whether endpoints change.
func (s situation) rollout() bool { return s.added > 0 }

// fails says whether connections to the first endpoint fail.
func (s situation) fails() bool { return s.first == refuses || s.first == resets }

func (s situation) String() string { return s.name }

// arrival is one connection of the load.
type arrival struct {
	// at is when it comes, from the start on, and hold how long its server takes.
	at, hold time.Duration
	// client is the number of its address.
	client int
	// pause is the time to its next try, if its server goes away meanwhile.
	pause time.Duration
}

// arrivals are the load of so much time: the same for each balancer. Connections come independently of each other, and
// last for times of an exponential distribution.
func (s situation) arrivals(length time.Duration) (list []arrival) {
	seed := fnv.New64()
	fmt.Fprint(seed, s.name)
	rng := rand.New(rand.NewPCG(seed.Sum64(), 1))
	for at := time.Duration(0); ; {
		at += time.Duration(rng.ExpFloat64() / s.rate * float64(time.Second))
		if at >= length {
			return list
		}
		list = append(list, arrival{at: at, hold: time.Duration(rng.ExpFloat64() * float64(s.hold)),
			client: rng.IntN(clients), pause: time.Duration(rng.ExpFloat64() * float64(time.Second))})
	}
}

// period is what is done when, from the start of the load on. Until steady nothing is measured; at rollout endpoints
// change.
type period struct{ steady, rollout, end time.Duration }

// sample is how many connections each endpoint has open at a time: the servers' own count.
type sample struct {
	at   time.Duration
	open []int
}

// spread is the most connections of an endpoint beside their mean, on average over the samples before the rollout.
func spread(samples []sample, p period) float64 {
	sum, n := 0.0, 0
	for _, s := range samples {
		total := 0
		for _, open := range s.open[:endpoints] {
			total += open
		}
		if s.at >= p.steady && s.at < p.rollout && total > 0 {
			sum += float64(slices.Max(s.open[:endpoints])) * endpoints / float64(total)
			n++
		}
	}
	return sum / float64(n)
}

// settled is how long it takes since then until each new endpoint has four fifths of what the old ones have on average.
func (s situation) settled(samples []sample, since time.Duration) (time.Duration, bool) {
	for _, sample := range samples {
		old, total := sample.open[s.replaced:endpoints], 0
		for _, open := range old {
			total += open
		}
		least := slices.Min(sample.open[endpoints : endpoints+s.added])
		if sample.at > since && float64(least) >= 0.8*float64(total)/float64(len(old)) {
			return sample.at - since, true
		}
	}
	return 0, false
}

// TestArrivals: a situation has the same load each time, with its rate and its time to hold.
func TestArrivals(t *testing.T) {
	const length = 30 * time.Minute
	for _, s := range situations() {
		list, sum := s.arrivals(length), time.Duration(0)
		if !slices.Equal(list, s.arrivals(length)) {
			t.Errorf("%s: another load", s)
		}
		for _, a := range list {
			sum += a.hold
		}
		rate, hold := float64(len(list))/length.Seconds(), sum.Seconds()/float64(len(list))
		if off := rate / s.rate; off < 0.95 || off > 1.05 {
			t.Errorf("%s: %.2f connections a second", s, rate)
		}
		if off := hold / s.hold.Seconds(); off < 0.95 || off > 1.05 {
			t.Errorf("%s: %.2f s each", s, hold)
		}
	}
}
