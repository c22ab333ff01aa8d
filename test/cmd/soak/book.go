package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Book judges answers to questions that clients ask Services, by all that was true, or may have been, while a question
// was under way. It keeps what was true when: its caller says what is true from when on, when the kernel was seen to be
// there, and when the tables were damaged. A Book asks no questions and reads no clock. Its methods are safe for
// concurrent use.
type Book struct {
	mu       sync.Mutex
	versions map[Question][]version
	damages  []damage
}

// version is an expectation and when it may hold. A zero time has not come yet.
type version struct {
	Expectation
	from time.Time
	// until is when the kernel was seen to have left it behind, and left when open flows
	// have too.
	until, left time.Time
	// orphans says that open flows may stay for ever (see ProcessEnded).
	orphans bool
}

// damage is a time in which the rules may be anything; with memoryOnly one in which they
// may forget clients, and with dropsOnly one in which the kernel may drop packets.
type damage struct {
	cause       string
	memoryOnly  bool
	dropsOnly   bool
	from, until time.Time
}

// NewBook returns an empty book.
func NewBook() *Book { return &Book{versions: map[Question][]version{}} }

// Expect says what is true from now on, or soon: what was true before may be so until
// Settled.
func (b *Book) Expect(all map[Question]Expectation, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for q, e := range all {
		list := b.versions[q]
		if len(list) == 0 || !list[len(list)-1].equal(e) {
			b.versions[q] = append(list, version{Expectation: e, from: now})
		}
	}
}

// Alongside says what may be true too until Settled, besides what Expect said last.
func (b *Book) Alongside(all map[Question]Expectation, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for q, e := range all {
		list := b.versions[q]
		known := slices.ContainsFunc(list, func(v version) bool { return v.until.IsZero() && v.equal(e) })
		if last := len(list) - 1; last >= 0 && !known {
			b.versions[q] = slices.Insert(list, last, version{Expectation: e, from: now})
		}
	}
}

// Damage says that somebody may change the rules from now on.
func (b *Book) Damage(cause string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.damages = append(b.damages, damage{cause: cause, from: now})
}

// Drops says that the kernel may drop packets from now on, until the rules are settled. It
// may also forget open flows. A new connection that is answered is answered by the rules.
func (b *Book) Drops(cause string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.damages = append(b.damages, damage{cause: cause, dropsOnly: true, from: now})
}

// Forget says that the rules may forget clients from now on, until they are settled.
func (b *Book) Forget(cause string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.damages = append(b.damages, damage{cause: cause, memoryOnly: true, from: now})
}

// Orphaned is the excuse of a flow that ProcessEnded speaks of.
const Orphaned = "the process ended before it had removed the flows of a Service, or a port of one, that had gone"

// ProcessEnded says that the proxy ended just now. Where it had not yet removed the open
// flows of a Service or port that has gone, the next process cannot know that they were a Service's:
// neither the objects nor the tables tell. They stay for as long as their clients send.
func (b *Book) ProcessEnded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, list := range b.versions {
		last := len(list) - 1
		if last == 0 || list[last].Service != "" {
			continue
		}
		if slices.ContainsFunc(list[:last], func(v version) bool { return v.left.IsZero() && len(v.Known) > 0 }) {
			list[last].orphans = true
		}
	}
}

// NoDamage takes the last Damage back.
func (b *Book) NoDamage() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.damages = b.damages[:len(b.damages)-1]
}

// Settled says that the kernel has what was expected last. Earlier expectations end, for
// new connections, and so do damages.
func (b *Book) Settled(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, list := range b.versions {
		for i := range list[:len(list)-1] {
			if list[i].until.IsZero() {
				list[i].until = now
			}
		}
	}
	for i := range b.damages {
		if b.damages[i].until.IsZero() {
			b.damages[i].until = now
		}
	}
}

// FlowsSettled says that open flows have followed. It forgets what is older than memory.
func (b *Book) FlowsSettled(now time.Time, memory time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := now.Add(-memory)
	for q, list := range b.versions {
		for i := range list[:len(list)-1] {
			if list[i].left.IsZero() && !list[i].until.IsZero() {
				list[i].left = now
			}
		}
		b.versions[q] = slices.DeleteFunc(list, func(v version) bool { return !v.left.IsZero() && v.left.Before(old) })
	}
	b.damages = slices.DeleteFunc(b.damages, func(d damage) bool { return !d.until.IsZero() && d.until.Before(old) })
}

// Now is what is expected of a question.
func (b *Book) Now(q Question) Expectation {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.versions[q]
	if len(list) == 0 {
		return Expectation{}
	}
	return list[len(list)-1].Expectation
}

// Questions returns all questions that something was expected of, in an order.
func (b *Book) Questions() []Question {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Keys(b.versions), func(a, c Question) int {
		return strings.Compare(a.String(), c.String())
	})
}

// Verdict is what became of a question, judged.
type Verdict struct {
	// Wrong says what is wrong; empty if nothing is.
	Wrong string
	// Excuse names the damage by which a wrong answer may be.
	Excuse string
	// Moving says that more than one thing was expected, or the tables were damaged;
	// Damaged is the latter.
	Moving, Damaged bool
}

// Judge judges the answer to a question that was under way between two times.
func (b *Book) Judge(q Question, a Answer, from, to time.Time) Verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.held(q, from, to, a.Open)
	cause := b.damagedBetween(from, to)
	v := Verdict{Moving: len(held) != 1 || cause != "", Damaged: cause != ""}
	if a.Kind == Answered && !a.Open {
		cause = b.changedBetween(from, to)
	}
	left := a.Kind == Answered && a.Was != "" && a.Was != a.Pod &&
		!slices.ContainsFunc(held, func(e Expectation) bool { return !slices.Contains(e.Serving, a.Was) })
	if !left && slices.ContainsFunc(held, func(e Expectation) bool { return e.allows(a) }) {
		return v
	}
	if cause == "" && a.Open && a.Kind == Answered && b.orphaned(q, from, to) {
		cause = Orphaned
	}
	if cause != "" {
		v.Excuse = cause
		return v
	}
	var texts []string
	for _, e := range held {
		texts = append(texts, e.String())
	}
	v.Wrong = fmt.Sprintf("%v, between %s and %s: %v; want: %s", q, clock(from), clock(to), a,
		strings.Join(texts, ", or "))
	if a.Open {
		v.Wrong += fmt.Sprintf("; an open flow, which was with %q", a.Was)
	}
	if left {
		v.Wrong += " and had no reason to leave it"
	}
	return v
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }

// Excuse names a damage between the times, by which an open connection may have ended.
func (b *Book) Excuse(from, to time.Time) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.damagedBetween(from, to)
}

// MayCut says whether an open connection to the pod may have been cut between the times: the Service did not have the
// pod all of the time, in whatever condition, and it, or else the node, asks that connections to departed endpoints be
// cut.
func (b *Book) MayCut(q Question, pod string, from, to time.Time, node bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.held(q, from, to, true)
	asked := func(e Expectation) bool { return e.Departed == "cut" || e.Departed == "" && node }
	return slices.ContainsFunc(held, asked) && slices.ContainsFunc(held, func(e Expectation) bool {
		return !slices.Contains(e.Known, pod)
	})
}

// Sticks says whether a client that the pod answered at first must still be with it.
func (b *Book) Sticks(q Question, pod string, first, to time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.ContainsFunc(b.damages, func(d damage) bool { return d.overlaps(first, to) }) {
		return false
	}
	held := b.held(q, first, to, false)
	for _, e := range held {
		if e.Local != held[0].Local || e.Fate != Served || e.Affinity == 0 || to.Sub(first) >= e.Affinity ||
			!slices.Contains(e.Pods, pod) {
			return false
		}
	}
	return true
}

// held returns what may have been true at some time between the two.
func (b *Book) held(q Question, from, to time.Time, flow bool) []Expectation {
	var held []Expectation
	for _, v := range b.versions[q] {
		end := v.until
		if flow {
			end = v.left
		}
		if v.holds(from, to, end) {
			held = append(held, v.Expectation)
		}
	}
	return held
}

func (b *Book) orphaned(q Question, from, to time.Time) bool {
	return slices.ContainsFunc(b.versions[q], func(v version) bool { return v.orphans && v.holds(from, to, v.left) })
}

// holds says whether the version may have been true between the times; end is when it ended.
func (v *version) holds(from, to, end time.Time) bool {
	return !v.from.After(to) && (end.IsZero() || !end.Before(from))
}

// damagedBetween names a damage by which packets may be lost, and changedBetween one by
// which they may go to the wrong place.
func (b *Book) damagedBetween(from, to time.Time) string {
	return b.cause(from, to, func(d damage) bool { return !d.memoryOnly })
}

func (b *Book) changedBetween(from, to time.Time) string {
	return b.cause(from, to, func(d damage) bool { return !d.memoryOnly && !d.dropsOnly })
}

func (b *Book) cause(from, to time.Time, counts func(damage) bool) string {
	for _, d := range b.damages {
		if counts(d) && d.overlaps(from, to) {
			return d.cause
		}
	}
	return ""
}

func (d damage) overlaps(from, to time.Time) bool {
	return !d.from.After(to) && (d.until.IsZero() || !d.until.Before(from))
}
