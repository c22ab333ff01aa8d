package nft

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Step is a rule that a packet met on its way.
type Step struct {
	Hook  HookName
	Table TableID
	Chain string
	// Number is the rule's place in the chain, from 1.
	Number int
	Rule   Rule
	// Destination is where the packet was to go when it met the rule.
	Destination netip.AddrPort
	// Matched says that every statement held, up to one that ended the evaluation of the rule.
	// Otherwise Rule[Last] is the statement that did not hold.
	Matched bool
	// Last is the index of the last statement that was evaluated, -1 in a rule without any.
	Last int
	// Unknown says that the model does not know the statement Rule[Last], or what it refers to.
	Unknown bool
	// Lookups are the lookups that the rule made, in order.
	Lookups []Lookup
}

// Lookup is one lookup in a set or map.
type Lookup struct {
	Set *Set
	// Fields are those of the key.
	Fields Fields
	Key    Value
	Found  bool
	// Element is what the set has for the key, if Found.
	Element Element
}

// steps notes the rules that a packet meets, in the order in which it meets them. A nil receiver
// notes nothing.
type steps struct {
	list []Step
	// now is the index of the rule that is evaluated.
	now int
}

// begin notes a rule and returns its index.
func (s *steps) begin(step Step) int {
	if s == nil {
		return 0
	}
	step.Last = -1
	s.list = append(s.list, step)
	s.now = len(s.list) - 1
	return s.now
}

// looked notes a question of the rule that is evaluated. A rule asks before it leads to another chain.
func (s *steps) looked(l Lookup) {
	if s != nil {
		s.list[s.now].Lookups = append(s.list[s.now].Lookups, l)
	}
}

// ran notes what became of a statement.
func (s *steps) ran(step, statement int, o outcome, matched bool, w *walk) {
	if s == nil {
		return
	}
	s.now = step
	at := &s.list[step]
	at.Last, at.Matched = statement, matched
	// A rule that led to another chain is not the one at which the walk ended.
	at.Unknown = o == packetGone && w.result.Fate == Undecided && step == len(s.list)-1
}

// Way is one way through the rules, and the results to which it leads.
type Way struct {
	Steps []Step
	// Ends are the distinct results, sorted by destination. They have neither Path nor Learned.
	Ends []End
}

// End is a result and how likely it is.
type End struct {
	Result
	// Chance is above 0. The chances of all ends of all ways add up to 1.
	Chance float64
}

// Chance returns how likely the way is.
func (w *Way) Chance() float64 {
	sum := 0.0
	for _, e := range w.Ends {
		sum += e.Chance
	}
	return sum
}

// maxWalks bounds the walks of Ways: a program of ours has at most some hundred thousand endpoints
// at one frontend, but rules of others may multiply their numbers.
const maxWalks = 1 << 20

// maxSteps bounds the rules that all walks of Ways meet, and maxKept those of the ways that it returns:
// each takes memory.
const (
	maxSteps = 1 << 23
	maxKept  = 1 << 17
)

// walksBetween is the number of walks of Ways from one look at its context to the next.
const walksBetween = 256

// Ways traces the packet with all numbers that numgen can give, each time that a rule asks for one.
// It returns the ways, the most likely first. complete says that there are no others: Ways gives up
// after a million walks or too many rules, and when ctx ends, which it notices within walksBetween walks. There is
// at least one way.
func (m *Model) Ways(ctx context.Context, p Packet, local func(netip.Addr) bool) (ways []Way, complete bool) {
	d := dice{}
	known := map[string]int{}
	met, kept := 0, 0
	for n := 0; n < maxWalks && met < maxSteps && kept < maxKept; n++ {
		if n > 0 && n%walksBetween == 0 && ctx.Err() != nil {
			break
		}
		notes := &steps{}
		d.thrown = 0
		r := m.walk(&walk{packet: p, host: Host{Local: local, Random: d.throw}, dst: p.Dst, steps: notes})
		r.Path, r.Learned = nil, nil
		met += len(notes.list)
		name := wayName(notes.list)
		at, again := known[name]
		if !again {
			at = len(ways)
			known[name] = at
			ways = append(ways, Way{Steps: notes.list})
			kept += len(notes.list)
		}
		ways[at].Ends = append(ways[at].Ends, End{r, d.chance()})
		if !d.next() {
			complete = true
			break
		}
	}
	for i := range ways {
		ways[i].Ends = distinctEnds(ways[i].Ends)
	}
	slices.SortStableFunc(ways, func(a, b Way) int { return cmp.Compare(b.Chance(), a.Chance()) })
	return ways, complete
}

// distinctEnds sorts ends and adds up the chances of those that are the same.
func distinctEnds(ends []End) []End {
	slices.SortStableFunc(ends, func(a, b End) int {
		return cmp.Or(a.To.Compare(b.To), strings.Compare(string(a.Fate), string(b.Fate)), cmp.Compare(a.Mark, b.Mark))
	})
	distinct := ends[:0]
	for _, e := range ends {
		if last := len(distinct) - 1; last >= 0 && distinct[last].SameAs(e.Result) {
			distinct[last].Chance += e.Chance
			continue
		}
		distinct = append(distinct, e)
	}
	return distinct
}

// wayName is equal for walks that met the same rules with the same success.
func wayName(list []Step) string {
	var b strings.Builder
	for i := range list {
		s := &list[i]
		fmt.Fprintf(&b, "%d/%s/%d/%d/%t ", s.Hook, s.Chain, s.Number, s.Last, s.Matched)
	}
	return b.String()
}

// dice gives every sequence of numbers once, as an odometer does.
type dice struct {
	// sides and shown are those of each throw of the present sequence.
	sides, shown []uint32
	thrown       int
}

func (d *dice) throw(sides uint32) uint32 {
	if d.thrown == len(d.shown) {
		d.sides, d.shown = append(d.sides, sides), append(d.shown, 0)
	}
	d.thrown++
	return d.shown[d.thrown-1]
}

// chance is how likely the present sequence is.
func (d *dice) chance() float64 {
	chance := 1.0
	for _, n := range d.sides {
		chance /= float64(n)
	}
	return chance
}

// next goes to the next sequence; false after the last one.
func (d *dice) next() bool {
	for last := len(d.shown) - 1; last >= 0; last-- {
		if d.shown[last]++; d.shown[last] < d.sides[last] {
			d.sides, d.shown = d.sides[:last+1], d.shown[:last+1]
			return true
		}
	}
	return false
}
