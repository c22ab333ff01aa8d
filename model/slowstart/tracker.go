// Package slowstart decides which endpoints of Services are new, and which part of their weight they have by now. It promises
// that a Service has its whole weights when it is first seen, when all of its endpoints are new, and in the end.
//
// The package sees snapshots and times as values, and returns what the model's Builder takes. It reads no clock and changes
// no rules.
package slowstart

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// Tracker follows the snapshots of one process. The endpoints of the first one are not new.
type Tracker struct {
	last  service.Snapshot
	begun bool
	// since has the new endpoints of each Service.
	since map[service.Name]map[target]time.Time
	set   service.Growth
}

// target is an endpoint of a Service port.
type target struct {
	protocol service.Protocol
	port     uint16
	addr     netip.AddrPort
}

// Observe follows a change of the Services at a time. Its cost grows with the change.
func (t *Tracker) Observe(s service.Snapshot, now time.Time) {
	if t.since == nil {
		t.since = map[service.Name]map[target]time.Time{}
	}
	for change := range treap.Diff(t.last.Services, s.Services) {
		switch {
		case !change.HasNew || change.New.Options.SlowStart == 0:
			delete(t.since, change.Key)
		case t.begun && change.HadOld:
			t.follow(change.Key, change.Old, change.New, now)
		}
	}
	t.last, t.begun = s, true
}

// follow notes which endpoints of a Service get new connections now and did not before.
func (t *Tracker) follow(name service.Name, old, s *service.Service, now time.Time) {
	for i := range s.Ports {
		p := &s.Ports[i]
		j := slices.IndexFunc(old.Ports, func(o service.Port) bool { return o.Protocol == p.Protocol && o.Port == p.Port })
		if j < 0 {
			continue
		}
		for change := range sorted.Diff(old.Ports[j].Endpoints, p.Endpoints) {
			was, is := takes(change.Old), takes(change.New)
			switch {
			case is && !was:
				if t.since[name] == nil {
					t.since[name] = map[target]time.Time{}
				}
				t.since[name][target{p.Protocol, p.Port, change.New.Addr}] = now
			case was && !is:
				delete(t.since[name], target{p.Protocol, p.Port, change.Old.Addr})
			}
		}
	}
}

func takes(e *service.Endpoint) bool { return e.TakesNew() && !e.Drained() }

// Growth returns what grows at a time, and when that changes next; next is zero if nothing grows. Services of which nothing
// has changed keep their pointers.
func (t *Tracker) Growth(now time.Time) (growth service.Growth, next time.Time) {
	edits := map[service.Name]*[]service.Growing{}
	for name := range t.set.All() {
		edits[name] = nil
	}
	for name, since := range t.since {
		s := t.last.Services.At(name)
		list, due := growing(s, since, now)
		if len(since) == 0 {
			delete(t.since, name)
		}
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
		switch have := t.set.At(name); {
		case len(list) == 0:
		case have != nil && slices.Equal(*have, list):
			edits[name] = have
		default:
			edits[name] = &list
		}
	}
	t.set = t.set.Apply(treap.Edits(edits))
	return t.set, next
}

// growing returns the growing endpoints of a Service, sorted, and forgets those that have grown. Where all endpoints of a port
// are new they have grown at once.
func growing(s *service.Service, since map[target]time.Time, now time.Time) (list []service.Growing, next time.Time) {
	step := s.Options.SlowStart / service.GrowthSteps
	fresh := map[target]int{}
	for at, began := range since {
		if now.Sub(began) >= s.Options.SlowStart {
			delete(since, at)
			continue
		}
		fresh[target{protocol: at.protocol, port: at.port}]++
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		grown := 0
		for e := range p.Endpoints.All() {
			if _, isNew := since[target{p.Protocol, p.Port, e.Addr}]; !isNew && takes(&e) {
				grown++
			}
		}
		if fresh[target{protocol: p.Protocol, port: p.Port}] == 0 {
			continue
		}
		for at, began := range since {
			if at.protocol != p.Protocol || at.port != p.Port {
				continue
			}
			if grown == 0 {
				delete(since, at)
				continue
			}
			n := int(now.Sub(began)/step) + 1
			list = append(list, service.Growing{Protocol: at.protocol, Port: at.port, Addr: at.addr, Step: n, Since: began})
			if due := began.Add(time.Duration(n) * step); next.IsZero() || due.Before(next) {
				next = due
			}
		}
	}
	slices.SortFunc(list, func(a, b service.Growing) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port), a.Addr.Compare(b.Addr))
	})
	return list, next
}
