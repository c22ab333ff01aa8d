// Package slowstart decides which endpoints of Services are new, and which part of their weight they have by now. It promises
// that a Service has its whole weights when it is first seen, when all of its endpoints are new, and in the end.
//
// The package sees snapshots and times as values, and returns what the model's Builder takes. It reads no clock and changes
// no rules.
package slowstart

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// Tick is the least time from one step to the next: the steps of all Services that are due in it come together, as one change.
const Tick = time.Second

// MaxEndpoints is how many endpoints the Services that have growing ones may have together, and MaxOfNamespace how many those
// of one namespace. Beyond, new endpoints have their whole weight at once.
const (
	MaxEndpoints   = 4096
	MaxOfNamespace = MaxEndpoints / 4
)

// Tracker follows the snapshots of one process. The endpoints of the first one are not new.
type Tracker struct {
	last  service.Snapshot
	begun bool
	// fresh has the Services with new endpoints.
	fresh map[service.Name]*fresh
	// all and of count the endpoints of these Services, and of those in each namespace.
	all int
	of  map[string]int
	set service.Growth
	// next is the tick at which the first of them is due, or an earlier one; zero if nothing grows.
	next time.Time
}

// fresh are the new endpoints of a Service.
type fresh struct {
	since map[target]time.Time
	// due is when the first of them has the next step.
	due time.Time
	// size is the number of endpoints of the Service.
	size int
}

// target is an endpoint of a Service port.
type target struct {
	protocol service.Protocol
	port     uint16
	addr     netip.AddrPort
}

// Follow takes the Services as they are at a time, and returns what grows then. next is when to call it again although no
// Service has changed; it is zero if nothing grows. refused has the Services that are beyond the bounds with endpoints that
// came now. Between two ticks the cost grows with the change. Services of which nothing has changed keep their pointers.
func (t *Tracker) Follow(s service.Snapshot, now time.Time) (growth service.Growth, next time.Time, refused []service.Name) {
	if t.fresh == nil {
		t.fresh, t.of = map[service.Name]*fresh{}, map[string]int{}
	}
	touched := map[service.Name]bool{}
	for change := range treap.Diff(t.last.Services, s.Services) {
		switch {
		case !change.HasNew || change.New.Options.SlowStart == 0:
			t.forget(change.Key)
		case t.begun && change.HadOld && !t.follow(change.Key, change.Old, change.New, now):
			refused = append(refused, change.Key)
		}
		touched[change.Key] = true
	}
	t.last, t.begun = s, true
	if !t.next.IsZero() && !now.Before(t.next) {
		t.next = time.Time{}
		for name, f := range t.fresh {
			if now.Before(f.due) {
				t.wake(f.due)
			} else {
				touched[name] = true // and step finds when it is due again
			}
		}
	}
	t.step(touched, now)
	return t.set, t.next, refused
}

// step finds the present steps of Services.
func (t *Tracker) step(names map[service.Name]bool, now time.Time) {
	edits := map[service.Name]*service.Growers{}
	for name := range names {
		have := t.set.At(name)
		if have != nil {
			edits[name] = nil
		}
		f := t.fresh[name]
		if f == nil {
			continue
		}
		var list service.Growers
		if list, f.due = f.growing(t.last.Services.At(name), now); len(list) == 0 {
			t.forget(name)
			continue
		}
		if t.wake(f.due); have == nil || !slices.Equal(*have, list) {
			have = &list
		}
		edits[name] = have
	}
	if len(edits) > 0 {
		t.set = t.set.Apply(treap.Edits(edits))
	}
	if len(t.fresh) == 0 {
		t.next = time.Time{}
	}
}

// wake has the tick at or after a time, unless there is an earlier one.
func (t *Tracker) wake(due time.Time) {
	at := due // by Add, so that it keeps the monotonic clock's reading
	if past := due.Sub(due.Truncate(Tick)); past > 0 {
		at = due.Add(Tick - past)
	}
	if t.next.IsZero() || at.Before(t.next) {
		t.next = at
	}
}

func (t *Tracker) forget(name service.Name) {
	if f := t.fresh[name]; f != nil {
		t.resize(name, f, 0)
		delete(t.fresh, name)
	}
}

func (t *Tracker) resize(name service.Name, f *fresh, size int) {
	namespace, _ := name.Split()
	t.all += size - f.size
	if t.of[namespace] += size - f.size; t.of[namespace] == 0 {
		delete(t.of, namespace)
	}
	f.size = size
}

// follow notes which endpoints of a Service get new connections now and did not before. It says false, and forgets the
// Service, if it has new ones beyond the bounds.
func (t *Tracker) follow(name service.Name, old, s *service.Service, now time.Time) bool {
	f := t.fresh[name]
	if f == nil {
		f = &fresh{since: map[target]time.Time{}}
	}
	size := 0
	for i := range s.Ports {
		p := &s.Ports[i]
		size += p.Endpoints.Len()
		j := slices.IndexFunc(old.Ports, func(o service.Port) bool { return o.Protocol == p.Protocol && o.Port == p.Port })
		if j < 0 {
			continue
		}
		for change := range sorted.Diff(old.Ports[j].Endpoints, p.Endpoints) {
			was, is := takes(change.Old), takes(change.New)
			switch {
			case is && !was:
				f.since[target{p.Protocol, p.Port, change.New.Addr}] = now
			case was && !is:
				delete(f.since, target{p.Protocol, p.Port, change.Old.Addr})
			}
		}
	}
	if len(f.since) == 0 {
		t.forget(name)
		return true
	}
	t.fresh[name] = f
	t.resize(name, f, size)
	if namespace, _ := name.Split(); t.all > MaxEndpoints || t.of[namespace] > MaxOfNamespace {
		t.forget(name)
		return false
	}
	return true
}

func takes(e *service.Endpoint) bool { return e.TakesNew() && !e.Drained() }

// growing returns the growing endpoints of a Service, sorted, and forgets those that have grown. Where all endpoints of a port
// are new they have grown at once: else a quarter of the weight is theirs in the first half of the time, and a half in the
// second. due is when the first of them has more.
func (f *fresh) growing(s *service.Service, now time.Time) (_ service.Growers, due time.Time) {
	var list []service.Growing
	whole := s.Options.SlowStart
	maps.DeleteFunc(f.since, func(_ target, began time.Time) bool { return now.Sub(began) >= whole })
	others := map[target]bool{} // by port: one has endpoints that are not new
	for i := range s.Ports {
		p := &s.Ports[i]
		for e := range p.Endpoints.All() {
			if _, isNew := f.since[target{p.Protocol, p.Port, e.Addr}]; !isNew && takes(&e) {
				others[target{protocol: p.Protocol, port: p.Port}] = true
				break
			}
		}
	}
	for at, began := range f.since {
		if !others[target{protocol: at.protocol, port: at.port}] {
			delete(f.since, at)
			continue
		}
		part, next := 1, began.Add(whole/2)
		if !now.Before(next) {
			part, next = 2, began.Add(whole)
		}
		list = append(list, service.Growing{Protocol: at.protocol, Port: at.port, Addr: at.addr, Part: part, Since: began})
		if due.IsZero() || next.Before(due) {
			due = next
		}
	}
	return service.NewGrowers(list), due
}

// Growing is the number of Services that have growing endpoints.
func (t *Tracker) Growing() int { return len(t.fresh) }
