package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// Ejection says that one port of a service does without one of its endpoints, since this node gets no answer from it.
type Ejection struct {
	Protocol Protocol
	// Port is the service's own.
	Port uint16
	Addr netip.AddrPort
	// Since is when the endpoint was left out, and Why says it in words.
	Since time.Time
	Why   string
}

// Ejected are the ejections of one service, sorted by protocol, port and address, each once.
type Ejected []Ejection

// Ejections are those of all services that have any.
type Ejections = treap.Map[Name, *Ejected]

func (e Ejection) compare(o Ejection) int {
	return cmp.Or(cmp.Compare(e.Protocol, o.Protocol), cmp.Compare(e.Port, o.Port), e.Addr.Compare(o.Addr))
}

// Text is, for example, "since 12:03:07: 5 connections without answer, 2 tries of this node failed". The time is UTC.
func (e Ejection) Text() string {
	return fmt.Sprintf("since %s: %s", e.Since.UTC().Format(time.TimeOnly), e.Why)
}

// NewEjected sorts in place and keeps the slice. Of duplicates it keeps the first.
func NewEjected(list []Ejection) Ejected {
	slices.SortStableFunc(list, Ejection.compare)
	return slices.CompactFunc(list, func(a, b Ejection) bool { return a.compare(b) == 0 })
}

// Of returns the ejections of one port; a nil Ejected has none.
func (e *Ejected) Of(p *Port) []Ejection {
	if e == nil {
		return nil
	}
	from := slices.IndexFunc(*e, func(o Ejection) bool { return o.Protocol == p.Protocol && o.Port == p.Port })
	if from < 0 {
		return nil
	}
	list := (*e)[from:]
	if to := slices.IndexFunc(list, func(o Ejection) bool { return o.Protocol != p.Protocol || o.Port != p.Port }); to >= 0 {
		list = list[:to]
	}
	return list
}

// Find returns the ejection of an endpoint from a port, or nil.
func (e *Ejected) Find(p *Port, addr netip.AddrPort) *Ejection {
	if e == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(*e, Ejection{Protocol: p.Protocol, Port: p.Port, Addr: addr}, Ejection.compare)
	if !found {
		return nil
	}
	return &(*e)[i]
}

// SetEjections replaces the ejections. A service that is in both with the same pointer costs nothing.
func (b *Builder) SetEjections(e Ejections) {
	for change := range treap.Diff(b.snapshot.Ejections, e) {
		if s := b.Service(change.Key); s != nil {
			b.edit(change.Key, s)
		}
	}
	b.snapshot.Ejections = e
}

// without returns the service with the ejected endpoints neither ready nor serving; the service itself if it has none of
// them. An endpoint that is not ready anyway stays as it is.
func (s *Service) without(e *Ejected) *Service {
	if e == nil {
		return s
	}
	served := s
	for i := range s.Ports {
		var edits []sorted.Edit[Endpoint]
		for _, one := range e.Of(&s.Ports[i]) {
			if have := s.Ports[i].Endpoints.Find(Endpoint{Addr: one.Addr}); have != nil && have.Ready {
				silent := *have
				silent.Ready, silent.Serving, silent.Silent = false, false, true
				edits = append(edits, sorted.Edit[Endpoint]{Item: silent})
			}
		}
		if len(edits) == 0 {
			continue
		}
		if served == s {
			served = s.Clone()
		}
		served.Ports[i].Endpoints = s.Ports[i].Endpoints.Edit(edits)
	}
	if served != s && s.hasRanges() {
		served.fillRanges()
	}
	return served
}
