package watch

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func problemIn(namespace string, i int) Problem {
	return Problem{Object: Object{Kind: "EndpointSlice", Namespace: namespace, Name: fmt.Sprint("slice-", i)},
		Err: errors.New("no label")}
}

// storm reports problems of all namespaces once a second, a number of times for each
// namespace. It returns the number of admitted problems by namespace, the number of
// summaries, and the number of problems that the summaries count.
func storm(b *bounds, during time.Duration, each int,
	namespaces ...string) (reported map[string]int, summaries, omitted int) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	reported = map[string]int{}
	summary := func() {
		for _, p := range b.summary(now) {
			o := (*OmittedError)(nil)
			if errors.As(p, &o) {
				summaries++
				omitted += o.Count()
			}
		}
	}
	for end := now.Add(during); now.Before(end); now = now.Add(time.Second) {
		summary()
		var problems []Problem
		for _, namespace := range namespaces {
			for i := range each {
				problems = append(problems, problemIn(namespace, i))
			}
		}
		for _, p := range b.admit(now, problems) {
			reported[p.Object.Namespace]++
		}
	}
	now = now.Add(summaryPeriod)
	summary()
	return reported, summaries, omitted
}

// TestBounds: ten problems of one namespace are reported at once, and one more each
// minute. The others are counted. A namespace cannot use up another's share.
func TestBounds(t *testing.T) {
	each, minutes := 1000, 10
	if testing.Short() {
		each = 20
	}
	reported, summaries, omitted := storm(newBounds(), time.Duration(minutes)*time.Minute, each, "bad")
	if most := namespaceBurst + minutes; reported["bad"] < namespaceBurst || reported["bad"] > most || summaries > minutes+
		1 {
		t.Errorf("%d reported, want %d at most, and %d summaries", reported["bad"], most, summaries)
	}
	if reported["bad"]+omitted != each*60*minutes {
		t.Errorf("%d reported and %d counted, want %d together", reported["bad"], omitted, each*60*minutes)
	}

	b := newBounds()
	storm(b, time.Minute, each, "bad", "worse", "worst")
	now := time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC)
	if got := b.admit(now, []Problem{problemIn("good", 1)}); len(got) != 1 {
		t.Error("no problem of another namespace is reported")
	}
	for range 1000 { // Requests and waits report problems without an object.
		if got := b.admit(now, []Problem{{Err: &RequestError{Verb: "list", Resource: "nodes", Err: errors.New("no")}}}); len(
			got) != 1 {
			t.Fatal("a failed request is not reported")
		}
	}

	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprint("tenant-", i))
	}
	b = newBounds()
	reported, _, _ = storm(b, time.Duration(minutes)*time.Minute, 1, many...)
	sum := 0
	for _, n := range reported {
		sum += n
	}
	if most := allBurst + minutes*int(time.Minute/allPeriod); sum > most {
		t.Errorf("%d reported of many namespaces, want %d at most", sum, most)
	}
	if b.summary(now.Add(24 * time.Hour)); len(b.namespaces) > 0 && b.omitted == nil {
		b.omit(now, problemIn("x", 1))
		if b.summary(now.Add(24 * time.Hour)); len(b.namespaces) > 0 {
			t.Errorf("%d namespaces are remembered", len(b.namespaces))
		}
	}
	if got := (*bounds)(nil).admit(now, make([]Problem, each)); len(got) != each {
		t.Errorf("without bounds %d are reported", len(got))
	}
}

// TestSlicesWithoutService: ten thousand EndpointSlices that belong to no Service are
// ten problems, and one summary with their number and one example. The problem of
// another namespace is reported.
func TestSlicesWithoutService(t *testing.T) {
	many := 10000
	if testing.Short() {
		many = 2000
	}
	s := newAPIServer(t)
	s.set("nodes", node("192.168.0.2"))
	s.mu.Lock()
	for i := range many {
		slice := uniformSlice(0, 0)
		slice.Name, slice.Labels = fmt.Sprint("orphan-", i), nil
		s.resources["endpointslices"].objects[slice.Name] = slice
	}
	other := uniformSlice(1, 0)
	other.Name, other.Labels = "other", nil
	s.resources["endpointslices"].objects[other.Name] = other
	s.mu.Unlock()
	o := observe(t, s, Options{})
	o.await(textNode)
	reported, others := 0, 0
	summary := o.awaitProblem(func(p Problem) bool {
		switch p.Object.Namespace {
		case "ns-0":
			reported++
		case "ns-1":
			others++
		}
		return errors.As(p, new(*OmittedError))
	})
	var omitted *OmittedError
	errors.As(summary, &omitted)
	if reported != namespaceBurst || others != 1 || reported+omitted.Count() != many || omitted.Namespaces != 1 {
		t.Errorf("%d reported and %d of another namespace, %d counted in %d namespaces", reported, others, omitted.Count(),
			omitted.Namespaces)
	}
	for _, words := range []string{fmt.Sprintf("%d more problems (namespaces: 1)", many-namespaceBurst),
		"EndpointSlice ns-0/orphan-", "no kubernetes.io/service-name"} {
		if !strings.Contains(summary.Error(), words) {
			t.Errorf("%q lacks %q", summary.Error(), words)
		}
	}
}
