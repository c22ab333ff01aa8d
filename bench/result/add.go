package result

import (
	"fmt"
	"maps"
	"slices"
)

// Add makes one report of two. The second was measured later: its cells replace those
// with the same question, backend and size. It may add programs that the first report
// lacks. Neither report changes. Figures of two machines, or of two versions of a
// program, cannot be compared. The error then says in what the reports differ.
func (r *Report) Add(later *Report) (*Report, error) {
	facts, err := r.Facts.add(later.Facts)
	if err != nil {
		return nil, err
	}
	if r.Quick != later.Quick {
		return nil, fmt.Errorf("one report is of a quick run (%v), the other is not (%v)", r.Quick, later.Quick)
	}
	sum := *r
	sum.Facts, sum.Took = facts, r.Took+later.Took
	sum.Cells, sum.LeftOut, sum.Targets = slices.Clone(r.Cells), slices.Clone(r.LeftOut), nil
	for _, c := range later.Cells {
		sum.Put(c)
	}
	for _, what := range later.LeftOut {
		if !slices.Contains(sum.LeftOut, what) {
			sum.LeftOut = append(sum.LeftOut, what)
		}
	}
	sum.Judge()
	return &sum, nil
}

// add has the versions of both. The load is that of the first.
func (f Facts) add(later Facts) (Facts, error) {
	for _, fact := range []struct {
		name     string
		was, now any
	}{
		{"processor", f.CPU, later.CPU}, {"number of cores", f.Cores, later.Cores}, {"memory in MB", f.Memory, later.Memory},
		{"kernel", f.Kernel, later.Kernel}, {"Go", f.Go, later.Go},
	} {
		if fact.was != fact.now {
			return f, fmt.Errorf("the report is of another machine: its %s was %v and is %v", fact.name, fact.was, fact.now)
		}
	}
	versions := maps.Clone(f.Versions)
	if versions == nil {
		versions = map[string]string{}
	}
	for program, now := range later.Versions {
		if was, found := versions[program]; found && was != now {
			return f, fmt.Errorf("the report is of another %s: its version was %s and is %s", program, was, now)
		}
		versions[program] = now
	}
	f.Versions = versions
	return f, nil
}
