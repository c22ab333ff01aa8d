package check

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// Way is how a script is carried out. The zero Way carries out each step as it comes, by the
// transactions of the batch.
type Way struct {
	Name string
	// Restarts, Skips and Failures are for one step of so many: the proxy begins again and
	// reads the tables; the step comes together with the next one; an error ends the sync.
	Restarts, Skips, Failures int
	// Shuffled steps have their events in another order.
	Shuffled bool
	// Apart plans one family after the other. Single makes each operation a transaction of
	// its own, and Whole the whole batch one.
	Apart, Single, Whole bool
	// Otherwise begins with other settings. A restart brings the right ones.
	Otherwise bool
}

// Ways lists them.
func Ways() []Way {
	return []Way{
		{Name: "straight"},
		{Name: "one transaction", Whole: true},
		{Name: "single operations", Single: true},
		{Name: "families apart", Apart: true},
		{Name: "together", Skips: 2},
		{Name: "another order", Shuffled: true},
		{Name: "restarts", Restarts: 3},
		{Name: "errors", Failures: 2},
		{Name: "other settings before", Otherwise: true, Restarts: 6},
		{Name: "everything", Restarts: 4, Skips: 4, Failures: 3, Shuffled: true, Apart: true, Single: true, Otherwise: true},
	}
}

// Tables are where a script is carried out: a kernel, or a model of one.
type Tables interface {
	Apply(nft.Batch) error
	Read(want *nft.Program) (*nft.Model, error)
	// Restart is called when the proxy begins again.
	Restart() error
}

// Counts says what happened on a way.
type Counts struct {
	Syncs, Transactions, Reads, Restarts, Errors int
}

// errInjected is an error that a way makes.
var errInjected = errors.New("injected")

// otherMark is another choice of MasqueradeMark.
func otherMark(mark uint32) uint32 {
	if mark == 0 {
		return 1 << 31
	}
	return 0
}

// Run carries out the script. At the end it waits until nothing is idle. It returns the
// tables and the program that they should hold.
func (w Way) Run(rng *rand.Rand, script *Script, tables Tables) (*nft.Model, *nft.Program, Counts, error) {
	r := runner{way: w, rng: rng, tables: tables, config: script.Config, now: time.Unix(0, 0)}
	r.world.services = map[service.Name]*service.Service{}
	if w.Otherwise {
		r.config.MasqueradeMark, r.config.Counters, r.config.MasqueradeAll = otherMark(r.config.MasqueradeMark),
			!r.config.Counters, !r.config.MasqueradeAll
	}
	for i, step := range script.Steps {
		last := i == len(script.Steps)-1
		if w.Shuffled {
			step = shuffled(rng, step)
		}
		for _, e := range step {
			e.world(&r.world)
			if r.builder != nil {
				e.builder(r.builder)
			}
		}
		if !last && r.chance(w.Skips) {
			continue
		}
		if r.builder == nil || last && w.Otherwise || r.chance(w.Restarts) {
			if r.builder != nil || last {
				r.config = script.Config
			}
			if err := r.restart(); err != nil {
				return nil, nil, r.counts, err
			}
		}
		err := r.sync(r.chance(w.Failures))
		if last && errors.Is(err, errInjected) {
			err = r.sync(false)
		}
		if err != nil && !errors.Is(err, errInjected) {
			return nil, nil, r.counts, fmt.Errorf("step %d: %w", i, err)
		}
		r.now = r.now.Add(time.Duration(rng.IntN(8)) * time.Second)
	}
	for range 3 { // until idle chains and sets have gone
		r.now = r.now.Add(nft.IdleLife)
		if err := r.sync(false); err != nil {
			return nil, nil, r.counts, fmt.Errorf("at the end: %w", err)
		}
	}
	m, err := tables.Read(r.want)
	return m, r.want, r.counts, err
}

// runner is a way under way.
type runner struct {
	way    Way
	rng    *rand.Rand
	tables Tables
	config ruleset.Config
	world  world
	counts Counts
	now    time.Time

	builder  *snapshots.Builder
	compiler *ruleset.Compiler
	want     *nft.Program
	state    nft.State
	// known says that state is what the tables hold.
	known bool
}

// chance is true once in n times, and never for 0.
func (r *runner) chance(n int) bool { return n > 0 && r.rng.IntN(n) == 0 }

func (r *runner) restart() error {
	r.counts.Restarts++
	r.known, r.builder, r.compiler = false, r.world.builder(r.rng), ruleset.NewCompiler(r.config)
	return r.tables.Restart()
}

// sync is one round of the loop. With fail, it ends in an error, after all, some or none of
// the batch.
func (r *runner) sync(fail bool) error {
	r.counts.Syncs++
	r.want = r.compiler.Compile(r.builder.Snapshot())
	if !r.known {
		r.counts.Reads++
		m, err := r.tables.Read(r.want)
		if err != nil {
			return err
		}
		r.state, r.known = nft.Adopt(m, r.want), true
	}
	batch, next := r.plan()
	if fail {
		r.counts.Errors++
		r.known = false
		if err := r.apply(nft.Batch{Ops: batch.Ops[:r.rng.IntN(len(batch.Ops)+1)]}); err != nil {
			return err
		}
		return errInjected
	}
	if err := r.apply(batch); err != nil {
		return fmt.Errorf("%w\n%s", err, batch)
	}
	r.state = next
	return nil
}

func (r *runner) plan() (nft.Batch, nft.State) {
	if !r.way.Apart {
		return r.state.Plan(r.want, r.now)
	}
	families := nft.Families()
	if r.rng.IntN(2) == 0 {
		families[0], families[1] = families[1], families[0]
	}
	first, state := r.state.PlanTable(r.want.Table(families[0]), r.now)
	second, state := state.PlanTable(r.want.Table(families[1]), r.now)
	return nft.Join(first, second), state
}

// apply sends the batch by transactions as the way cuts it.
func (r *runner) apply(b nft.Batch) error {
	transactions := b.Transactions()
	switch {
	case b.Empty():
		return nil
	case r.way.Whole:
		transactions = []nft.Batch{{Ops: b.Ops}}
	case r.way.Single:
		transactions = nil
		for _, op := range b.Ops {
			transactions = append(transactions, nft.Batch{Ops: []nft.Op{op}})
		}
	}
	for _, t := range transactions {
		r.counts.Transactions++
		if err := r.tables.Apply(t); err != nil {
			return err
		}
	}
	return nil
}
