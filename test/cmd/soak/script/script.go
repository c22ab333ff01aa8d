// Package script promises the events of a soak run as data: a text that can be kept,
// read, cut down and replayed. A line holds one event, which says all that there is to
// know of it, so that any lines of a script make a script again.
//
// It draws random scripts, and finds a short one that still fails. It carries out
// nothing.
package script

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Event is one line: a verb, and arguments in the order of their lines.
type Event struct {
	Verb string
	Args []Arg
}

// Arg is an argument, NAME=VALUE. Neither part has spaces.
type Arg struct{ Name, Value string }

// The verbs. The package soak says what each does.
const (
	World = "world" // the first line: options of the run

	Service   = "service"
	Delete    = "delete"
	Endpoints = "endpoints"
	Crowd     = "crowd"

	Start   = "start"
	Kill    = "kill"
	Term    = "term"
	Pause   = "pause"
	Older   = "older"
	Options = "options"

	Flush   = "flush"
	Tamper  = "tamper"
	Unowned = "unowned"
	Other   = "other"
	Churn   = "churn"
	Full    = "full"

	StopAPI  = "stop-api"
	StartAPI = "start-api"
	Backup   = "backup"
	Restore  = "restore"

	AddAddress = "add-address"
	DelAddress = "del-address"
	AddLink    = "add-link"
	DelLink    = "del-link"

	Cut    = "cut"
	Repair = "repair"

	Settle = "settle"
)

// New makes an event of words such as "name=web".
func New(verb string, args ...string) Event {
	e := Event{Verb: verb}
	for _, word := range args {
		name, value, _ := strings.Cut(word, "=")
		e.Args = append(e.Args, Arg{name, value})
	}
	return e
}

// Get returns an argument's value, empty if there is none.
func (e Event) Get(name string) string {
	for _, a := range e.Args {
		if a.Name == name {
			return a.Value
		}
	}
	return ""
}

// Int returns an argument as a number, 0 if it is none.
func (e Event) Int(name string) int {
	n, _ := strconv.Atoi(e.Get(name)) // a script by hand may have anything
	return n
}

// List returns the parts of an argument that commas separate.
func (e Event) List(name string) []string {
	if e.Get(name) == "" {
		return nil
	}
	return strings.Split(e.Get(name), ",")
}

// String is the event's line.
func (e Event) String() string {
	words := []string{e.Verb}
	for _, a := range e.Args {
		words = append(words, a.Name+"="+a.Value)
	}
	return strings.Join(words, " ")
}

// Parse reads a script. Lines that are empty or begin with # do not count.
func Parse(r io.Reader) ([]Event, error) {
	var events []Event
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if !slices.Contains(Verbs(), words[0]) {
			return nil, fmt.Errorf("line %d: %q is no event", n, words[0])
		}
		events = append(events, New(words[0], words[1:]...))
	}
	return events, lines.Err()
}

// Verbs lists all verbs.
func Verbs() []string {
	return []string{
		World, Service, Delete, Endpoints, Crowd, Start, Kill, Term, Pause, Older, Options, Flush, Tamper, Unowned, Other,
		Churn, Full,
		StopAPI, StartAPI, Backup, Restore, AddAddress, DelAddress, AddLink, DelLink, Cut, Repair, Settle,
	}
}

// Write writes a script, a line for each event.
func Write(w io.Writer, events []Event) error {
	for _, e := range events {
		if _, err := fmt.Fprintln(w, e); err != nil {
			return err
		}
	}
	return nil
}
