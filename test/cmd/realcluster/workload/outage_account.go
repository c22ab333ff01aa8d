package workload

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// account is all that is known of a trial.
type account struct {
	phases   []phase
	notes    []note
	failures []Failure
}

// slack is how long after the Service has endpoints again a request may still fail: until all nodes know of them. The
// computer is busy then.
const slack = 5 * time.Second

// mostTold bounds the list of requests that failed for another reason.
const mostTold = 20

// span is a time in which the Service had no endpoint.
type span struct{ from, to time.Time }

// empty lists the times in which the control plane said that the Service has no ready endpoint.
func (a *account) empty() []span {
	var spans []span
	open := false
	for _, n := range a.notes {
		switch {
		case n.ready == 0 && !open:
			spans, open = append(spans, span{from: n.at}), true
		case n.ready > 0 && open:
			spans[len(spans)-1].to, open = n.at, false
		}
	}
	if open {
		spans[len(spans)-1].to = a.end()
	}
	return spans
}

func (a *account) end() time.Time { return a.phases[len(a.phases)-1].to }

// gone is when the API server went away.
func (a *account) gone() time.Time { return a.phases[1].from }

// blame divides the requests that failed: into those that failed by the word of the control plane, and the others. For
// the former the Service had no endpoint. Or an endpoint went while a datagram was on its way to it: then the proxies
// forget the flow, and the answer finds no way back.
func (a *account) blame() (itsWord, others []Failure) {
	empty := a.empty()
	for _, f := range a.failures {
		told := slices.ContainsFunc(empty, func(s span) bool {
			return f.Ended.After(s.from) && f.Began.Before(s.to.Add(slack))
		})
		left := slices.ContainsFunc(a.notes, func(n note) bool {
			return n.fewer && f.Began.Before(n.at.Add(slack)) && f.Ended.After(n.at)
		})
		if told && !f.OpenBefore() || left && f.UDP() {
			itsWord = append(itsWord, f)
		} else {
			others = append(others, f)
		}
	}
	return itsWord, others
}

// write writes the account: what the control plane wrote, the requests of each phase, and those that failed.
func (a *account) write(out io.Writer) {
	since := func(t time.Time) string { return fmt.Sprintf("%+6.1f s", t.Sub(a.gone()).Seconds()) }
	for _, p := range a.phases {
		fmt.Fprintf(out, "%s  %s, for %.1f s: %d of %d requests failed\n", since(p.from), p.name, p.to.Sub(p.from).Seconds(),
			p.failed, p.requests)
	}
	for _, n := range a.told() {
		fmt.Fprintf(out, "%s  %s\n", since(n.at), n.text)
	}
	itsWord, others := a.blame()
	for _, s := range a.empty() {
		fmt.Fprintf(out, "no endpoint was ready for %.1f s, from %s to %s\n", s.to.Sub(s.from).Seconds(), since(s.from),
			since(s.to))
	}
	if n := len(itsWord); n > 0 {
		fmt.Fprintf(out, "%d requests failed because endpoints had gone, the first at %s, the last at %s: %v\n",
			n, since(itsWord[0].Ended), since(itsWord[n-1].Ended), &itsWord[0])
	}
	for _, f := range others[:min(len(others), mostTold)] {
		fmt.Fprintf(out, "%s  %v\n", since(f.Began), &f)
	}
	fmt.Fprintf(out, "%d requests failed for another reason\n", len(others))
}

// told leaves out the renewals of leases, but for the last one of each node before the API server's return and the
// first one after it.
func (a *account) told() []note {
	back := a.phases[len(a.phases)-1].from
	last, first := map[string]int{}, map[string]int{}
	for i, n := range a.notes {
		if !n.renewal {
			continue
		}
		if n.at.Before(back) {
			last[n.text] = i
		} else if _, found := first[n.text]; !found {
			first[n.text] = i
		}
	}
	var told []note
	for i, n := range a.notes {
		if !n.renewal || last[n.text] == i && n.at.Before(back) || first[n.text] == i && !n.at.Before(back) {
			told = append(told, n)
		}
	}
	return told
}

// verdict is an error if requests failed for which the control plane gave no reason.
func (a *account) verdict() error {
	_, others := a.blame()
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("%d requests failed while the Service had endpoints, the first: %w", len(others), &others[0])
}
