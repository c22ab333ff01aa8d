package conntrack

import (
	"time"

	"nftproxy/model/pace"
)

// The CPU time that passes may take. A pass follows each change at once, and the
// changes of a rolling update follow each other for a while: the burst is for
// them. In the long run passes take 5 % of a core, however large the table is and
// however often there is a sync.
const (
	// rest is the time that pays for one unit of CPU time, in such units.
	rest = 20
	// burst is the CPU time that passes may take beyond that. A hundred endpoints
	// with 2,000 flows each, one replaced every 100 ms, take some 8 s of it: 60 to
	// 100 ms for each endpoint (bench/control).
	burst = 12 * time.Second
	// firstEvery is the least time from one first pass to the next. One pass serves
	// all changes of that time. With a longer time, or with a rest after each pass,
	// passes over a large table fall behind: several endpoints at a time cost
	// several walks.
	firstEvery = 80 * time.Millisecond
	// firstLate and secondLate are the waits before two more passes, over the whole
	// table, after the last change: a program such as a network policy engine can hold a
	// packet for longer than secondPassAfter, and without changes no pass would find
	// the entry that the packet makes at its release. Both together stay below formerFor, as
	// long as departed endpoints are known.
	firstLate, secondLate = time.Minute, 3 * time.Minute
	// routineRest is the rest after routine passes. They find an entry only if the
	// index misjudged a sync, or if another program changes the table or the rules.
	routineRest = 100 * rest
	// routineMost is the longest rest after a routine pass: what only such a pass finds
	// stays no longer. Over a large table, a pass of 1 s in 5 min is 0.3 % of a core.
	routineMost = 5 * time.Minute
)

// purpose is a reason to make a pass. One pass can have several purposes.
type purpose int

const (
	firstPass   purpose = iota // the first pass for a change
	secondPass                 // the second pass for a change
	routinePass                // a pass over the whole table that no change calls for
	purposes                   // the number of purposes
)

// purposeSet has true for each purpose of one pass.
type purposeSet [purposes]bool

func allPurposes() purposeSet { return purposeSet{true, true, true} }

// whole says that the purposes need a pass over the whole table. A routine pass
// that is due does not make a first pass longer, unless a second one is due too.
func (p purposeSet) whole() bool { return p[routinePass] && (p[secondPass] || !p[firstPass]) }

// pacing decides when a pass may run, and for which purposes. First passes run at
// once, but not too many of them in a second. Second and routine passes run so
// rarely that each kind takes a small share of a core. One budget of CPU time
// bounds all passes together; first passes can use up all of it. Pacing does not
// know where passes look.
//
// Its methods take secondDue from the agenda: the time from which on a second pass
// is of use, zero if no change waits for one.
type pacing struct {
	schedules [purposes]pace.Schedule
	budget    pace.Budget
}

func newPacing() pacing {
	return pacing{
		schedules: [purposes]pace.Schedule{
			firstPass:   {Every: firstEvery, Late: []time.Duration{firstLate, secondLate}},
			secondPass:  {Pause: rest},
			routinePass: {Pause: routineRest, IdlePause: routineRest, IdleMost: routineMost},
		},
		budget: pace.Budget{Rest: rest, Burst: burst},
	}
}

// requestFirst asks for a first pass, for a change that has just come.
func (p *pacing) requestFirst() { p.schedules[firstPass].Request(true) }

// requestRoutine asks for a routine pass, at any later time.
func (p *pacing) requestRoutine() { p.schedules[routinePass].Request(false) }

// next returns when the next pass may run. ok is false if nothing asks for one.
func (p *pacing) next(secondDue time.Time) (at time.Time, ok bool) {
	for reason := range purposes {
		if one, asked := p.nextFor(reason, secondDue); asked && (!ok || one.Before(at)) {
			at, ok = one, true
		}
	}
	return pace.Later(at, p.budget.Ready()), ok
}

// nextFor returns when a pass for one purpose may run, whatever the budget is.
func (p *pacing) nextFor(reason purpose, secondDue time.Time) (at time.Time, ok bool) {
	at, ok = p.schedules[reason].Next()
	switch reason {
	case secondPass:
		return pace.Later(secondDue, at), ok && !secondDue.IsZero()
	case routinePass: // It waits for a second pass, and then both are one.
		if second, waiting := p.nextFor(secondPass, secondDue); waiting {
			at = pace.Later(at, second)
		}
	}
	return at, ok
}

// due returns the purposes of a pass that begins now.
func (p *pacing) due(now, secondDue time.Time) (due purposeSet) {
	for reason := range purposes {
		at, ok := p.nextFor(reason, secondDue)
		due[reason] = ok && !now.Before(at)
	}
	return due
}

// begin notes that a pass begins now.
func (p *pacing) begin(now time.Time, served purposeSet) {
	for reason := range served {
		if served[reason] {
			p.schedules[reason].Begin(now)
		}
	}
}

// end notes that the pass has ended and how much CPU time it took. A pass of all
// purposes has to follow one that failed, after a while.
func (p *pacing) end(now time.Time, served purposeSet, cpu time.Duration, failed bool, secondDue time.Time) {
	p.budget.Spend(now, cpu)
	if failed {
		served = allPurposes()
	}
	for reason := range served {
		if served[reason] {
			p.schedules[reason].End(now, cpu, failed)
		}
	}
	if !secondDue.IsZero() {
		p.schedules[secondPass].Request(true)
	}
}
