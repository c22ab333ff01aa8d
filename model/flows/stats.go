package flows

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Stats are estimates of some connections. The zero value is of none.
type Stats struct {
	// PerSecond is how many new connections there are, and New how many of them there were in the window. Failed of
	// those with a result got no answer, or one that refuses.
	PerSecond, New, Failed, Settled float64
	// Open is how many connections have not ended, whenever they began.
	Open float64
	// BytesFrom and BytesTo are bytes from clients and to them, of new and of open connections.
	BytesFrom, BytesTo float64
	// Followed is how many flows all of this rests on.
	Followed int

	causes  map[string]float64
	answers histogram
}

// Outcome is the result with its cause, as people read it.
func (f *Flow) Outcome() string { return strings.TrimSuffix(string(f.Result)+" "+f.Cause, " ") }

// histogram has times in buckets that are each a fifth wider than the one before.
type histogram map[int]float64

const (
	bucketWidth = 1.2
	finest      = time.Microsecond
)

func bucketOf(seconds float64) int {
	return int(math.Floor(math.Log(max(1, seconds/finest.Seconds())) / math.Log(bucketWidth)))
}

// Add adds a flow: over is the window in which it is new, 0 if it is not.
func (s *Stats) Add(f *Flow, over time.Duration) {
	weight := float64(f.Weight)
	s.Followed++
	s.BytesFrom, s.BytesTo = s.BytesFrom+weight*float64(f.BytesFrom), s.BytesTo+weight*float64(f.BytesTo)
	if !f.Ended {
		s.Open += weight
	}
	if a := f.AnswerSeconds; a != nil && *a >= 0 && f.Result == Answered {
		if s.answers == nil {
			s.answers = histogram{}
		}
		s.answers[bucketOf(*a)] += weight
	}
	if over <= 0 {
		return
	}
	s.New += weight
	s.PerSecond += weight / over.Seconds()
	if f.Result == Waiting {
		return
	}
	s.Settled += weight
	if f.Result != Answered {
		s.Failed += weight
		if s.causes == nil {
			s.causes = map[string]float64{}
		}
		s.causes[f.Outcome()] += weight
	}
}

// Join adds what is known of other connections.
func (s *Stats) Join(o *Stats) {
	s.PerSecond, s.New, s.Failed, s.Settled = s.PerSecond+o.PerSecond, s.New+o.New, s.Failed+o.Failed, s.Settled+o.Settled
	s.Open, s.BytesFrom, s.BytesTo = s.Open+o.Open, s.BytesFrom+o.BytesFrom, s.BytesTo+o.BytesTo
	s.Followed += o.Followed
	for cause, n := range o.causes {
		if s.causes == nil {
			s.causes = map[string]float64{}
		}
		s.causes[cause] += n
	}
	for b, n := range o.answers {
		if s.answers == nil {
			s.answers = histogram{}
		}
		s.answers[b] += n
	}
}

// Answer is the time to the first answer within which that share of connections was answered, to a tenth of it; false
// if none was. A share is from 0 to 1.
func (s *Stats) Answer(share float64) (time.Duration, bool) {
	all := 0.0
	for _, n := range s.answers {
		all += n
	}
	if all == 0 {
		return 0, false
	}
	buckets := slices.Sorted(maps.Keys(s.answers))
	sum := 0.0
	for _, b := range buckets {
		if sum += s.answers[b]; sum >= share*all {
			return middle(b), true
		}
	}
	return middle(buckets[len(buckets)-1]), true
}

// middle is the middle of a bucket, by ratio.
func middle(bucket int) time.Duration {
	return time.Duration(math.Pow(bucketWidth, float64(bucket)+0.5) * float64(finest))
}

// FailedShare is the share of failed connections, from 0 to 1.
func (s *Stats) FailedShare() float64 {
	if s.Settled == 0 {
		return 0
	}
	return s.Failed / s.Settled
}

// Causes are why connections failed, the most frequent first, in the words of nftproxy
func (s *Stats) Causes() []string {
	return slices.SortedFunc(maps.Keys(s.causes), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.causes[b], s.causes[a]), strings.Compare(a, b))
	})
}
