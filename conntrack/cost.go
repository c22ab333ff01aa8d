package conntrack

import "time"

// The kernel walks every bucket of its hash table for each dump, filtered or not. The
// unit of cost is the visit of an empty bucket, which took 40 ns on Linux 6.18. The
// constants say how many visits an entry costs: to walk past it, to copy and judge
// it, and to delete it.
const (
	passEntry   = 3
	copyEntry   = 25
	deleteEntry = 100
)

// visit is the assumed cost of a visit before the first pass.
const visit = 40 * time.Nanosecond

// usualBuckets is the assumed size of the hash table if the kernel does not say it.
const usualBuckets = 1 << 18

// size is the size of the table.
type size struct {
	entries, buckets int
}

// walk returns the visits of a walk over the table that copies no entry.
func (s size) walk() float64 {
	if s.buckets == 0 {
		s.buckets = usualBuckets
	}
	return float64(s.buckets + passEntry*s.entries)
}

// whole returns the visits of a walk that copies all entries.
func (s size) whole() float64 { return s.walk() + float64(copyEntry*s.entries) }

// prices decides whether filtered walks or one walk over everything is cheaper. It
// has the measured CPU time for a visit, by kind of pass. The measurement includes
// the costs that the visits leave out, such as entries that a filtered walk returns
// although nobody asked for them.
type prices struct {
	filtered, whole float64 // seconds
}

func newPrices() prices { return prices{visit.Seconds(), visit.Seconds()} }

// wholeIsCheaper says whether one walk over everything costs at most as much as so
// many filtered walks.
func (p *prices) wholeIsCheaper(s size, walks int) bool {
	return s.whole()*p.whole <= float64(walks)*s.walk()*p.filtered
}

// learn is the weight of the latest pass in the price of its kind. With each whole
// pass, the price of filtered passes moves by drift towards the price of whole ones.
// So filtered passes that were expensive once get another chance: whole passes come
// now and then in any case.
const (
	learn = 0.3
	drift = 0.05
)

// observe updates the prices with the cost of a pass.
func (p *prices) observe(s size, run Run) {
	if run.CPU <= 0 {
		return // the clock was too coarse
	}
	price, visits := &p.whole, s.whole()
	if run.Walks > 0 {
		price, visits = &p.filtered, float64(run.Walks)*s.walk()
	}
	for _, n := range run.Removed {
		visits += float64(deleteEntry * n)
	}
	*price += learn * (run.CPU.Seconds()/visits - *price)
	if run.Walks == 0 {
		p.filtered += drift * (p.whole - p.filtered)
	}
}
