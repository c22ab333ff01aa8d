package traffic

import (
	"cmp"
	"errors"
	"maps"
	"runtime"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"nftproxy/look/inspect"
	"nftproxy/model/ip"
	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// RefusalKernel has the counters.
type RefusalKernel interface {
	// ChainCount returns what all counters of a chain have counted; 0 if there is no such chain.
	ChainCount(table nft.TableID, chain string) (packets uint64, err error)
	// Counts visits the elements with these keys that are there and have a counter.
	Counts(table nft.TableID, set *nft.Set, keys []nft.Value, visit func(kernel.Count)) error
	inspect.HeldKernel
}

// Subject is a Service and the cause for which its packets were refused or dropped.
type Subject struct {
	Name  service.Name
	Cause ruleset.Cause
}

// Refused is how many packets of a Subject were refused or dropped.
type Refused struct {
	Subject
	// Packets is the number since the last look at the Service's counters, Total the
	// number since the RefusalCounter began, with what the kernel had counted before.
	Packets, Total uint64
}

// Refusals is the outcome of one look at the counters.
type Refusals struct {
	At time.Time
	// Causes has the packets of each cause, by the family's index in nft.Families. The numbers
	// never go down.
	Causes ip.PerFamily[map[ruleset.Cause]uint64]
	// Services has the Subjects with any packets since the RefusalCounter began, the greatest
	// Total first.
	Services []Refused
	// Persistent has the Subjects whose clients do not give up (see habit), of packets that are not
	// meant to be dropped (ruleset.Promised, source ranges, connections that are held).
	Persistent []Refused
	// Held has the Services whose connections are held, as of the last time when their budget allowed to read them, and
	// those with packets since then, but for those that hold none any more, the most connections first. HeldFull says
	// that the kernel had no room to remember some connections between two readings, so that more may wait.
	Held     []Held
	HeldFull bool
	// Err is why the numbers may be behind, or nil.
	Err error
}

// Held is a Service whose connections are held.
type Held struct {
	Name service.Name
	// Connections is how many are, at least one if the kernel has counted a packet since the reading before the last.
	// Since is when the first of them began to wait.
	Connections int
	Since       time.Time
}

// budgetShare is the part of a core that reading elements may take: one in so many. Reading the connections that are
// held may take another one, so that a flood of them delays neither the counters nor what follows from these. Chains
// are some twenty requests for each look, however many Services there are.
const (
	budgetShare = 200
	budgetBurst = 50 * time.Millisecond
)

// RefusalCounter adds up the counters of one proxy's tables. It is not safe for concurrent use.
type RefusalCounter struct {
	kernel   RefusalKernel
	clock    func() time.Time
	cpu      func() time.Duration
	program  *nft.Program
	families ip.PerFamily[family]
	habits   habits
	// totals are since the beginning. A Subject stays until its Service leaves the program.
	totals map[Subject]uint64
	// budget pays for reading elements, and heldBudget for reading the connections that are held.
	budget, heldBudget pace.Budget
	// held and heldFull are the latest that were read. counted is since when the kernel has counted packets that were
	// held since then.
	held     []Held
	heldFull bool
	counted  map[service.Name]time.Time
	// sets has the causes of the sets whose elements count.
	sets map[string]ruleset.Cause
}

// NewRefusalCounter makes a RefusalCounter without a program. The clock is time.Now, but in tests. cpu is the CPU time
// of the calling thread so far.
func NewRefusalCounter(k RefusalKernel, clock func() time.Time, cpu func() time.Duration) *RefusalCounter {
	budget := pace.Budget{Rest: budgetShare, Burst: budgetBurst}
	c := &RefusalCounter{
		kernel: k, clock: clock, cpu: cpu, totals: map[Subject]uint64{}, counted: map[service.Name]time.Time{},
		habits: habits{map[Subject]int{}, map[Subject]time.Time{}, rate.NewLimiter(rate.Every(reportPeriod), reportBurst)},
		budget: budget, heldBudget: budget, sets: ruleset.RefusalSets(),
	}
	for i := range c.families {
		c.families[i] = family{chains: map[string]uint64{}, causes: map[ruleset.Cause]uint64{},
			elements: map[string][]element{}, changed: map[ruleset.Cause]bool{ruleset.Held: true}, last: map[place]uint64{},
			frontends: map[ruleset.Place]frontend{}, unnoted: map[string]uint64{}}
	}
	return c
}

// family is what is known of one table.
type family struct {
	// chains is what their counters said last, and causes what they have counted.
	chains map[string]uint64
	causes map[ruleset.Cause]uint64
	// elements are those that count, by part. changed has the causes with packets that no
	// element was asked about yet. At first Held is one: what was counted before read says of nobody that he waits now.
	elements map[string][]element
	changed  map[ruleset.Cause]bool
	read     bool
	// last has the numbers of the elements that have counted any.
	last map[place]uint64
	// frontends has all of the program. unnoted is what the counters of chains said last (ruleset.CountUnnoted).
	frontends map[ruleset.Place]frontend
	unnoted   map[string]uint64
}

// frontend has its Service, and what that has there.
type frontend struct {
	service service.Name
	ruleset.Reach
}

// element is where an element is, and the cause that it counts.
type element struct {
	place // without the family
	cause ruleset.Cause
	// promised says that these packets are meant to be dropped: nobody has to know, and they take no turn from others.
	promised bool
}

// Follow says which program is in force. The cost follows the changes since the last one.
func (c *RefusalCounter) Follow(p *nft.Program) {
	for i, f := range nft.Families() {
		var before treap.Map[string, *nft.Part]
		if c.program != nil {
			before = c.program.Table(f).Parts
		}
		for d := range treap.Diff(before, p.Table(f).Parts) {
			c.families[i].setPart(d.Key, c.elementsOf(d.New))
			c.families[i].setFrontends(service.Name(d.Key), d.Old, d.New)
		}
	}
	c.program = p
	for s := range c.totals {
		if !c.has(s.Name) {
			delete(c.totals, s)
			c.habits.forget(s)
		}
	}
}

func (c *RefusalCounter) has(name service.Name) bool {
	for _, f := range nft.Families() {
		if c.program.Table(f).Parts.At(string(name)) != nil {
			return true
		}
	}
	return false
}

// elementsOf lists the elements of a part that count, none for a part that has gone.
func (c *RefusalCounter) elementsOf(part *nft.Part) []element {
	if part == nil {
		return nil
	}
	var list []element
	promised := ruleset.Promised(part)
	for i := range part.Elements {
		e := &part.Elements[i]
		if cause, counts := c.sets[e.Set]; counts {
			list = append(list, element{place{set: e.Set, key: e.Key}, cause,
				promised(e) || cause == ruleset.Held || cause == ruleset.OutsideSourceRanges})
		}
	}
	return list
}

// setPart replaces the elements of a part.
func (f *family) setPart(name string, now []element) {
	stay := make(map[place]bool, len(now))
	for _, e := range now {
		stay[e.place] = true
	}
	for _, e := range f.elements[name] {
		if !stay[e.place] {
			delete(f.last, e.place)
		}
	}
	if now == nil {
		delete(f.elements, name)
		return
	}
	f.elements[name] = now
}

// setFrontends replaces the frontends of a part.
func (f *family) setFrontends(name service.Name, old, now *nft.Part) {
	for at := range ruleset.Frontends(old) {
		if f.frontends[at].service == name { // else another part has it by now
			delete(f.frontends, at)
		}
	}
	for at, r := range ruleset.Frontends(now) {
		known := f.frontends[at]
		r.Holds = r.Holds || known.service == name && known.Holds
		f.frontends[at] = frontend{name, r}
	}
}

// within does work if the budget allows it.
func (c *RefusalCounter) within(b *pace.Budget, work func()) {
	if c.clock().Before(b.Ready()) {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := c.cpu()
	work()
	b.Spend(c.clock(), c.cpu()-began)
}

// Look reads the counters. It asks elements only where their cause's chain has counted
// packets, and where the budget allows; otherwise a later look does.
func (c *RefusalCounter) Look() Refusals {
	look := Refusals{At: c.clock()}
	if c.program == nil {
		return look
	}
	var errs []error
	for i, f := range nft.Families() {
		errs = append(errs, c.lookAtChains(i, c.program.Table(f).ID()))
		look.Causes[i] = maps.Clone(c.families[i].causes)
	}
	found := packets{map[Subject]uint64{}, map[Subject]uint64{}, map[service.Name]bool{}}
	c.within(&c.budget, func() {
		for i, f := range nft.Families() {
			errs = append(errs, c.lookAtElements(i, c.program.Table(f), found))
		}
		look.Persistent = c.habits.notice(look.At, found.unwanted)
	})
	for name := range found.held {
		if _, known := c.counted[name]; !known {
			c.counted[name] = look.At
		}
	}
	c.within(&c.heldBudget, func() { errs = append(errs, c.lookAtHeld(look.At)) })
	for s, total := range c.totals {
		look.Services = append(look.Services, Refused{s, found.more[s], total})
	}
	slices.SortFunc(look.Services, func(a, b Refused) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cause, b.Cause))
	})
	for i := range look.Persistent {
		look.Persistent[i].Total = c.totals[look.Persistent[i].Subject]
	}
	look.Held, look.HeldFull = c.heldNow(), c.heldFull
	look.Err = errors.Join(errs...)
	return look
}

// packets is what one look finds: all, those that nobody wants to be dropped, and the Services of which packets were
// held since the reading before.
type packets struct {
	more, unwanted map[Subject]uint64
	held           map[service.Name]bool
}

// Holds says whether a Service has a frontend that holds.
func Holds(p *nft.Program, name service.Name) bool {
	for _, f := range nft.Families() {
		for _, r := range ruleset.Frontends(p.Table(f).Parts.At(string(name))) {
			if r.Holds {
				return true
			}
		}
	}
	return false
}

// heldNow has what was read, and the Services with packets since then.
func (c *RefusalCounter) heldNow() []Held {
	known := make(map[service.Name]bool, len(c.held))
	var list []Held
	add := func(h Held) {
		if !known[h.Name] && Holds(c.program, h.Name) {
			known[h.Name] = true
			list = append(list, h)
		}
	}
	for _, h := range c.held {
		add(h)
	}
	for name, since := range c.counted {
		add(Held{name, 1, since})
	}
	slices.SortFunc(list, func(a, b Held) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// lookAtHeld reads the connections that are held. A Service with packets since the last reading has at least one.
func (c *RefusalCounter) lookAtHeld(now time.Time) error {
	held := map[service.Name]inspect.Held{}
	c.heldFull = false
	for i, f := range nft.Families() {
		table, known := c.program.Table(f), &c.families[i]
		if table.Set(ruleset.HeldFlows().Name) == nil {
			clear(known.unnoted)
			continue
		}
		full, err := c.lookAtUnnoted(known, table)
		if err != nil {
			return err
		}
		c.heldFull = c.heldFull || full
		err = inspect.EachHeld(c.kernel, table.ID(), func(at ruleset.Place) (r ruleset.Reach, found bool) {
			frontend, found := known.frontends[at]
			return frontend.Reach, found
		}, func(at ruleset.Place, waited time.Duration) {
			name := known.frontends[at].service
			h := held[name]
			h.Add(waited)
			held[name] = h
		})
		if err != nil {
			return err
		}
	}
	c.held = nil
	for name, h := range held {
		c.held = append(c.held, Held{name, h.Connections, now.Add(-h.Longest)})
	}
	for name, since := range c.counted {
		if held[name].Connections == 0 {
			c.held = append(c.held, Held{name, 1, since})
		}
	}
	clear(c.counted)
	return nil
}

// lookAtUnnoted says whether a table had no room to remember connections since the last reading. What the first reading
// of a table finds may be old.
func (c *RefusalCounter) lookAtUnnoted(f *family, table *nft.Table) (full bool, err error) {
	now, first := map[string]uint64{}, len(f.unnoted) == 0
	for chain := range ruleset.CountUnnoted(table) {
		if now[chain], err = c.kernel.ChainCount(table.ID(), chain); err != nil {
			return false, err
		}
		full = full || !first && since(f.unnoted[chain], now[chain]) > 0
	}
	f.unnoted = now
	return full, nil
}

func (c *RefusalCounter) lookAtChains(i int, table nft.TableID) error {
	f := &c.families[i]
	for _, cause := range ruleset.Causes() {
		for _, chain := range cause.Chains() {
			n, err := c.kernel.ChainCount(table, chain)
			if err != nil {
				return err
			}
			more := since(f.chains[chain], n)
			f.chains[chain] = n
			f.causes[cause] += more
			if more > 0 {
				for _, counting := range cause.Counting() {
					f.changed[counting] = true
				}
			}
		}
	}
	return nil
}

// lookAtElements reads the elements of all causes that have counted packets, and adds to what is found.
func (c *RefusalCounter) lookAtElements(i int, table *nft.Table, found packets) error {
	f := &c.families[i]
	if len(f.changed) == 0 {
		return nil
	}
	keys := map[string][]nft.Value{}
	type counts struct {
		Subject
		promised bool
	}
	of := map[place]counts{}
	for part, elements := range f.elements {
		for _, e := range elements {
			if f.changed[e.cause] && table.Set(e.set) != nil {
				keys[e.set] = append(keys[e.set], e.key)
				of[e.place] = counts{Subject{service.Name(part), e.cause}, e.promised}
			}
		}
	}
	for set, list := range keys {
		err := c.kernel.Counts(table.ID(), table.Set(set), list, func(n kernel.Count) {
			at := place{set: set, key: n.Key}
			if packets := since(f.last[at], n.Packets); packets > 0 {
				f.last[at] = n.Packets
				s := of[at].Subject
				found.more[s] += packets
				c.totals[s] += packets
				if !of[at].promised {
					found.unwanted[s] += packets
				}
				if s.Cause == ruleset.Held && f.read {
					found.held[s.Name] = true
				}
			}
		})
		if err != nil {
			return err
		}
	}
	clear(f.changed)
	f.read = true
	return nil
}
