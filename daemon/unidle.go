package daemon

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// A Service is asked for again after unidleSilence. The Services of a namespace are asked for unidleBurst at
// once, and then one in each unidlePeriod (docs/tenants.md): a namespace delays only its own.
const (
	unidleSilence = 30 * time.Second
	unidleBurst   = 20
	unidlePeriod  = 30 * time.Second
)

// unidler finds the Services without pods that clients ask for: those that are idled, and those that hold connections.
// A single packet is enough, since pods are started for it: so it is quicker than the report about
// clients that keep coming (traffic.Refusals.Persistent).
type unidler struct {
	// idledAt returns when a Service was idled, zero if it is not.
	idledAt func(service.Name) time.Time
	// waiting has the Services that had packets or held connections since they were last asked for, and since when.
	waiting map[service.Name]time.Time
	// asked is when the Services were asked for, and limits has the namespaces that may not ask for unidleBurst now.
	asked  map[service.Name]time.Time
	limits map[string]*rate.Limiter
}

func newUnidler(idledAt func(service.Name) time.Time) *unidler {
	return &unidler{idledAt, map[service.Name]time.Time{}, map[service.Name]time.Time{}, map[string]*rate.Limiter{}}
}

// wanted returns the Services to ask for, the namespaces in turn. It asks for none before the time at which it was
// idled, which another host's clock said: the controller passes such an event over.
func (u *unidler) wanted(l traffic.Refusals) (names []service.Name) {
	maps.DeleteFunc(u.asked, func(_ service.Name, at time.Time) bool { return l.At.Sub(at) >= unidleSilence })
	maps.DeleteFunc(u.limits, func(_ string, limit *rate.Limiter) bool { return limit.TokensAt(l.At) >= unidleBurst })
	held := map[service.Name]bool{}
	waits := func(name service.Name) {
		if _, known := u.waiting[name]; !known {
			u.waiting[name] = l.At
		}
	}
	for _, h := range l.Held {
		held[h.Name] = true
		waits(h.Name)
	}
	for _, s := range l.Services {
		if s.Cause == ruleset.NoEndpoints && s.Packets > 0 {
			waits(s.Name)
		}
	}
	maps.DeleteFunc(u.waiting, func(name service.Name, _ time.Time) bool {
		return !held[name] && u.idledAt(name).IsZero()
	})
	turns, turn := map[string]int{}, map[service.Name]int{}
	for _, name := range slices.SortedFunc(maps.Keys(u.waiting), func(a, b service.Name) int {
		return cmp.Or(u.waiting[a].Compare(u.waiting[b]), cmp.Compare(a, b))
	}) {
		namespace, _ := name.Split()
		if _, silent := u.asked[name]; silent || l.At.Before(u.idledAt(name)) || !u.allow(namespace, l.At) {
			continue
		}
		u.asked[name], turn[name] = l.At, turns[namespace]
		turns[namespace]++
		names = append(names, name)
		delete(u.waiting, name)
	}
	slices.SortStableFunc(names, func(a, b service.Name) int { return cmp.Compare(turn[a], turn[b]) })
	return names
}

func (u *unidler) allow(namespace string, now time.Time) bool {
	if u.limits[namespace] == nil {
		u.limits[namespace] = rate.NewLimiter(rate.Every(unidlePeriod), unidleBurst)
	}
	return u.limits[namespace].AllowN(now, 1)
}
