package share

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// Tick is the least time from one step of SlowStarts to the next: the steps of all Services that are due in it come
// together, as one change.
const Tick = time.Second

// MaxGrowing is how many endpoints the Services that have growing ones may have together, and MaxGrowingOfNamespace how
// many those of one namespace. Beyond, new endpoints have their whole weight at once.
const (
	MaxGrowing            = 4096
	MaxGrowingOfNamespace = MaxGrowing / 4
)

// SlowStarts decide which endpoints of Services are new, and which part of their weight they have by now. Somebody
// always has the whole weight: the endpoints of a Service when it is first seen, those that have been there longest,
// and all of them in the end. SlowStarts follow the snapshots of one process. The endpoints of the first are not new.
type SlowStarts struct {
	last service.Snapshot
	// fresh has the Services with new endpoints; nil before the first snapshot.
	fresh map[service.Name]*fresh
	// full has the Services whose last new endpoints were beyond the bounds.
	full map[service.Name]bool
	// all and of count the endpoints of these Services, and of those in each namespace.
	all int
	of  map[string]int
	set service.Adjustments
	// next is the tick at which the first of them is due, or an earlier one; zero if nothing grows.
	next time.Time
}

// fresh are the new endpoints of a Service.
type fresh struct {
	since map[service.PortEndpoint]time.Time
	// due is when the first of them has the next step.
	due time.Time
	// size is the number of endpoints of the Service.
	size int
}

// Follow takes the Services as they are at a time, and returns what grows then. next is when to call it again although
// no Service has changed; it is zero if nothing grows. refused has the Services that are beyond the bounds with
// endpoints that came now, and were within them with those that came before. Between two ticks the cost grows with the
// change.
func (t *SlowStarts) Follow(s service.Snapshot, now time.Time) (growing service.Adjustments, next time.Time,
	refused []service.Name) {
	var touched []service.Name
	if t.fresh == nil {
		t.fresh, t.full, t.of = map[service.Name]*fresh{}, map[service.Name]bool{}, map[string]int{}
	} else {
		for change := range treap.Diff(t.last.Services, s.Services) {
			followed := t.fresh[change.Key] != nil
			switch {
			case !change.HasNew || change.New.Options.SlowStart == 0:
				t.forget(change.Key)
				delete(t.full, change.Key)
			case change.HadOld && t.follow(change.Key, change.Old, change.New, now):
				refused = append(refused, change.Key)
			}
			if followed || t.fresh[change.Key] != nil {
				touched = append(touched, change.Key)
			}
		}
	}
	t.last = s
	if !t.next.IsZero() && !now.Before(t.next) {
		t.next = time.Time{}
		for name, f := range t.fresh {
			if now.Before(f.due) {
				t.wake(f.due)
			} else {
				touched = append(touched, name) // and step finds when it is due again
			}
		}
	}
	if len(touched) > 0 {
		t.step(touched, now)
	}
	return t.set, t.next, refused
}

// step finds the present steps of Services.
func (t *SlowStarts) step(names []service.Name, now time.Time) {
	edits := map[service.Name]*service.Adjusted{}
	for _, name := range names {
		edits[name] = nil
		f := t.fresh[name]
		if f == nil {
			continue
		}
		if edits[name] = f.advance(t.last.Services.At(name), now); len(f.since) == 0 {
			t.forget(name)
			continue
		}
		t.wake(f.due)
	}
	t.set = t.set.Apply(treap.Edits(edits))
	if len(t.fresh) == 0 {
		t.next = time.Time{}
	}
}

// wake has the tick at or after a time, unless there is an earlier one.
func (t *SlowStarts) wake(due time.Time) {
	at := due // by Add, so that it keeps the monotonic clock's reading
	if past := due.Sub(due.Truncate(Tick)); past > 0 {
		at = due.Add(Tick - past)
	}
	if t.next.IsZero() || at.Before(t.next) {
		t.next = at
	}
}

func (t *SlowStarts) forget(name service.Name) {
	if f := t.fresh[name]; f != nil {
		t.resize(name, f, 0)
		delete(t.fresh, name)
	}
}

func (t *SlowStarts) resize(name service.Name, f *fresh, size int) {
	namespace, _ := name.Split()
	t.all += size - f.size
	if t.of[namespace] += size - f.size; t.of[namespace] == 0 {
		delete(t.of, namespace)
	}
	f.size = size
}

// follow notes which endpoints of a Service get new connections now and did not before. It forgets the Service if it
// has new ones beyond the bounds, and says so the first time.
func (t *SlowStarts) follow(name service.Name, old, s *service.Service, now time.Time) (refused bool) {
	f := t.fresh[name]
	if f == nil {
		f = &fresh{since: map[service.PortEndpoint]time.Time{}}
	}
	before := map[service.PortEndpoint]service.Endpoints{} // by port
	for i := range old.Ports {
		before[portOf(&old.Ports[i])] = old.Ports[i].Endpoints
	}
	size := 0
	for i := range s.Ports {
		p := &s.Ports[i]
		size += p.Endpoints.Len()
		had, known := before[portOf(p)]
		if !known {
			continue
		}
		for change := range sorted.Diff(had, p.Endpoints) {
			was, is := takes(change.Old), takes(change.New)
			switch {
			case is && !was:
				f.since[p.At(change.New.Addr)] = now
			case was && !is:
				delete(f.since, p.At(change.Old.Addr))
			}
		}
	}
	if len(f.since) == 0 {
		t.forget(name)
		return false
	}
	t.fresh[name] = f
	t.resize(name, f, size)
	if namespace, _ := name.Split(); t.all <= MaxGrowing && t.of[namespace] <= MaxGrowingOfNamespace {
		delete(t.full, name)
		return false
	}
	t.forget(name)
	refused = !t.full[name]
	t.full[name] = true
	return refused
}

func portOf(p *service.Port) service.PortEndpoint { return p.At(netip.AddrPort{}) }

func takes(e *service.Endpoint) bool { return e.TakesNew() && !e.Drained() }

// advance returns the growing endpoints of a Service, sorted, and forgets those that have grown. An endpoint has a
// quarter of its weight in the first half of the time, and a half in the second. The greatest part that any ready
// endpoint of a port and family has counts as the whole there: so endpoints that are equally new do not wait. It notes
// when the first of them has more.
func (f *fresh) advance(s *service.Service, now time.Time) *service.Adjusted {
	var list []service.Adjustment
	whole, since := s.Options.SlowStart, map[service.PortEndpoint]time.Time{}
	f.due = time.Time{}
	for i := range s.Ports {
		p, first := &s.Ports[i], len(list)
		var ready, any ip.PerFamily[uint32]
		for e := range p.Endpoints.All() {
			if !takes(&e) {
				continue
			}
			at, share := p.At(e.Addr), service.WholeShare
			if began, isNew := f.since[at]; isNew && now.Sub(began) < whole {
				next := began.Add(whole / 2)
				if share = service.Quarter; !now.Before(next) {
					share, next = service.Half, began.Add(whole)
				}
				if f.due.IsZero() || next.Before(f.due) {
					f.due = next
				}
				since[at] = began
				list = append(list, service.Adjustment{PortEndpoint: at, Share: share, Since: began})
			}
			greatest := any.Of(ip.Of(e.Addr.Addr()))
			if *greatest = max(*greatest, share.Quarters()); e.Ready {
				greatest = ready.Of(ip.Of(e.Addr.Addr()))
				*greatest = max(*greatest, share.Quarters())
			}
		}
		for j := range list[first:] {
			g := &list[first+j]
			family := ip.Of(g.Addr.Addr())
			all := service.WholeShare.Quarters()
			g.Share = service.ShareOf(min(all, g.Share.Quarters()*all/cmp.Or(*ready.Of(family), *any.Of(family))))
		}
	}
	f.since = since
	return service.NewAdjusted(slices.DeleteFunc(list, func(g service.Adjustment) bool {
		return g.Share == service.WholeShare
	}))
}

// Growing is the number of Services that have new endpoints.
func (t *SlowStarts) Growing() int { return len(t.fresh) }
