package service

import (
	"fmt"
	"time"

	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// Ejection says that one port of a service does without one of its endpoints, since this node gets no answer from it.
type Ejection struct {
	PortEndpoint
	// Since is when the endpoint was left out, and Why says it in words.
	Since time.Time
	Why   string
}

// Ejected are the ejections of one service.
type Ejected = Notes[Ejection]

// Ejections are those of all services that have any.
type Ejections = treap.Map[Name, *Ejected]

// Text is, for example, "since 12:03:07: 5 connections without answer, 2 tries of this node failed". The time is UTC.
func (e Ejection) Text() string {
	return fmt.Sprintf("since %s: %s", e.Since.UTC().Format(time.TimeOnly), e.Why)
}

// SetEjections replaces the ejections. A service that is in both with the same pointer costs nothing.
func (b *Builder) SetEjections(e Ejections) { setNotes(b, &b.snapshot.Ejections, e) }

// without returns the service with the ejected endpoints neither ready nor serving; the service itself if it has none
// of them. An endpoint that is not ready anyway stays as it is.
func (s *Service) without(e *Ejected) *Service {
	served := noted(s, e, func(e *Endpoint, _ Ejection) bool {
		ready := e.Ready
		if ready {
			e.Ready, e.Serving, e.Silent = false, false, true
		}
		return ready
	})
	if served != s && s.hasRanges() {
		served.fillRanges()
	}
	return served
}

// Whole returns the service with the endpoints that the node does without as the source has them.
func (s *Service) Whole() *Service {
	whole := s
	for i := range s.Ports {
		var edits []sorted.Edit[Endpoint]
		for e := range s.Ports[i].Endpoints.All() {
			if e.Silent {
				e.Ready, e.Serving, e.Silent = true, true, false
				edits = append(edits, sorted.Edit[Endpoint]{Item: e})
			}
		}
		if len(edits) > 0 {
			if whole == s {
				whole = s.Clone()
			}
			whole.Ports[i].Endpoints = s.Ports[i].Endpoints.Edit(edits)
		}
	}
	return whole
}
