package netlinkfault

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Choose chooses among the messages that were sent: the first, a middle and the last
// one of each kind, in each transaction and in all requests.
func Choose(places []Place) []Place {
	groups := map[string][]Place{}
	for _, p := range places {
		name := p.Message
		if p.Transaction() {
			name = fmt.Sprintf("%d %s", p.Datagram, name)
		}
		groups[name] = append(groups[name], p)
	}
	var chosen []Place
	for _, list := range groups {
		n := len(list)
		chosen = append(chosen, list[0], list[n/2], list[n-1])
	}
	slices.SortFunc(chosen, func(a, b Place) int { return a.Number - b.Number })
	return slices.Compact(chosen)
}

// Faults lists the faults that can come at a place.
func Faults(p Place) []Fault {
	var all []Fault
	add := func(kind Kind, errnos ...unix.Errno) {
		for _, e := range errnos {
			all = append(all, Fault{Kind: kind, Errno: e})
		}
	}
	add(Refuse, unix.EEXIST, unix.ENOENT, unix.EBUSY, unix.ENOMEM, unix.EPERM, unix.ENOBUFS, unix.ERESTART, unix.EINTR)
	if p.Transaction() {
		add(RefuseSilently, unix.EBUSY)
	}
	if p.Elements() {
		add(RefuseUnlocated, unix.EEXIST, unix.ENOENT, unix.ENOMEM)
	}
	if p.Of > 0 || p.Message == End {
		return all // The others are about the whole datagram: they come at its begin.
	}
	add(Unsent, unix.ENOMEM, unix.ENOBUFS, unix.EPERM, unix.EINTR)
	add(Unread, unix.ENOMEM, unix.EINTR)
	for _, kind := range []Kind{Lost, Overrun, Late, Stale, Cut} {
		add(kind, 0)
	}
	if !p.Dump() {
		return all
	}
	add(Interrupted, 0)
	add(Ended, unix.EINTR, unix.ENOMEM, unix.ENOENT)
	add(Stuck, 0)
	for _, f := range slices.Clone(all) {
		if f.Kind >= Cut || f.Kind == Unread {
			for at := 1; at <= 2; at++ {
				f.At = at
				all = append(all, f)
			}
		}
	}
	return all
}
