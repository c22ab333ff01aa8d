package daemon

import (
	"maps"
	"time"

	"golang.org/x/time/rate"

	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// The rates of events about idled Services are those of events about Services without endpoints (docs/tenants.md).
const (
	unidleSilence = 10 * time.Minute
	unidleBurst   = 20
	unidlePeriod  = 30 * time.Second
)

// unidler finds the idled Services that clients ask for. A single packet is enough, since pods are started for it: so
// it is quicker than the report about clients that keep coming (traffic.Refusals.Persistent).
type unidler struct {
	// idledAt returns when a Service was idled, empty if it is not.
	idledAt func(service.Name) string
	told    map[service.Name]unidling
	bucket  *rate.Limiter
}

// unidling is the last report of a Service: which idling ended by it, and when.
type unidling struct {
	of string
	at time.Time
}

func newUnidler(idledAt func(service.Name) string) *unidler {
	return &unidler{idledAt, map[service.Name]unidling{}, rate.NewLimiter(rate.Every(unidlePeriod), unidleBurst)}
}

// wanted returns the idled Services that clients have asked for since the look before: each once after it was idled,
// and again after a while.
func (u *unidler) wanted(l traffic.Refusals) (names []service.Name) {
	maps.DeleteFunc(u.told, func(_ service.Name, last unidling) bool { return l.At.Sub(last.at) >= unidleSilence })
	for _, s := range l.Services {
		if s.Cause != ruleset.NoEndpoints || s.Packets == 0 {
			continue
		}
		at := u.idledAt(s.Name)
		if last := u.told[s.Name]; at == "" || last.of == at {
			continue
		}
		if !u.bucket.AllowN(l.At, 1) {
			break
		}
		u.told[s.Name] = unidling{at, l.At}
		names = append(names, s.Name)
	}
	return names
}
