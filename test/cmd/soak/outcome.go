package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Question is what a client asks again and again.
type Question struct {
	// Client is where it comes from.
	Client   string
	Protocol string
	To       netip.AddrPort
}

func (q Question) String() string {
	return fmt.Sprintf("%s from %s to %v", q.Protocol, q.Client, q.To)
}

// Fate is what the cluster says becomes of a question.
type Fate int

// The fates. The zero value is Unserved.
const (
	// Unserved: no pod answers. Whether it is refused or dropped does not matter.
	Unserved Fate = iota
	// Refused: it is refused, and that can be seen.
	Refused
	// Served: one of the pods answers.
	Served
)

// Source says what a pod sees of the client's address.
type Source int

// The zero value says nothing.
const (
	AnySource Source = iota
	Kept
	Masqueraded
)

// Expectation is the fate of a question under one state of the cluster.
type Expectation struct {
	Fate Fate
	// Pods are those that get new connections, sorted.
	Pods []string
	// Known are the Service's pods in any condition, sorted: a flow may stay with them.
	Known []string
	// Serving are those of Known that answer: an open flow has no reason to leave them.
	Serving []string
	Source  Source
	// Affinity is how long a client is remembered, 0 for not at all. Local says that only
	// the endpoints on the node count: clients of both kinds are remembered apart.
	Affinity time.Duration
	Local    bool
	// Service is the one that has the address and port; empty if none has.
	Service string
	// Departed is what it asks for about connections to pods that it has no more: "keep", "cut", or nothing.
	Departed string
}

func (e Expectation) equal(o Expectation) bool {
	return e.Fate == o.Fate && e.Source == o.Source && e.Affinity == o.Affinity && e.Local == o.Local &&
		e.Service == o.Service && e.Departed == o.Departed && slices.Equal(e.Pods, o.Pods) &&
		slices.Equal(e.Known, o.Known) && slices.Equal(e.Serving, o.Serving)
}

func (e Expectation) String() string {
	switch e.Fate {
	case Refused:
		return "refused"
	case Unserved:
		return "not served"
	}
	text := "served by " + strings.Join(e.Pods, " ")
	if e.Source == Masqueraded {
		text += ", masqueraded"
	}
	return text
}

// Kind is how a question ended.
type Kind string

// The kinds of Answer.
const (
	Answered Kind = "answered"
	Rejected Kind = "refused"
	Silent   Kind = "not answered"
	Broken   Kind = "broken" // an open connection was
)

// Answer is how a question ended.
type Answer struct {
	Kind Kind
	// Pod is the one that answered, and Source the client's address there.
	Pod    string
	Source Source
	// Open says that the flow is an open one, which may follow a change later than new
	// connections do. Was is the pod that answered it last, if that one did.
	Open bool
	Was  string
}

func (a Answer) String() string {
	if a.Kind != Answered {
		return string(a.Kind)
	}
	text := "answered by " + a.Pod
	if a.Source == Masqueraded {
		text += ", masqueraded"
	}
	return text
}

// allows says whether the answer is right under the expectation.
func (e Expectation) allows(a Answer) bool {
	if a.Kind == Answered && a.Was == a.Pod && slices.Contains(e.Known, a.Pod) {
		return true
	}
	switch e.Fate {
	case Unserved:
		return a.Kind == Rejected || a.Kind == Silent
	case Refused:
		return a.Kind == Rejected
	}
	return a.Kind == Answered && slices.Contains(e.Pods, a.Pod) &&
		(e.Source == AnySource || a.Source == AnySource || e.Source == a.Source)
}

// Right says whether the answer is right, where nothing else was expected of late.
func (e Expectation) Right(a Answer) bool { return e.allows(a) }
