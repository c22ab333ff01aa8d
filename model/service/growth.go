package service

import (
	"fmt"
	"strconv"
	"time"

	"nftproxy/model/treap"
)

// WholePart is the Part of an endpoint that has grown. Parts are powers of two, so that pools stay short: beside 99
// endpoints of the same weight an endpoint makes a row of 397 slots with a quarter of it, 199 with a half and 100 with
// the whole; with tenths up to 999.
const WholePart = 4

// MaxSlowStart is the greatest Options.SlowStart.
const MaxSlowStart = time.Hour

func slowStartOption() option {
	return option{
		key: "slow-start",
		set: func(o *Options, value string) error {
			d, ok := wholeSeconds(value, MaxSlowStart)
			if !ok {
				return fmt.Errorf("not a time with whole seconds from 1s to %dh, such as 30s; new endpoints have their whole "+
					"weight at once", int(MaxSlowStart.Hours()))
			}
			o.SlowStart = d
			return nil
		},
		get: func(o *Options) string {
			if o.SlowStart == 0 {
				return ""
			}
			return strconv.Itoa(int(o.SlowStart.Seconds())) + "s"
		},
	}
}

// Growing says that an endpoint of one port of a service is new, and has only a part of its weight yet.
type Growing struct {
	PortEndpoint
	// Part of WholePart is its part of the weight, below the whole.
	Part uint8
	// Since is when it was new.
	Since time.Time
}

// Growers are the growing endpoints of one service.
type Growers = Notes[Growing]

// Growth has the growing endpoints of all services that have any.
type Growth = treap.Map[Name, *Growers]

// Text is, for example, "since 12:03:07: 1/4 of its weight". The time is UTC.
func (g Growing) Text() string {
	return fmt.Sprintf("since %s: %d/%d of its weight", g.Since.UTC().Format(time.TimeOnly), g.Part, WholePart)
}

// SetGrowth replaces the growing endpoints. A service that is in both with the same pointer costs nothing.
func (b *Builder) SetGrowth(g Growth) { setNotes(b, &b.snapshot.Growth, g) }

// grown returns the service with the part of the weight that growing endpoints have, and as many slots as fit the limit
// on its elements; the service itself if it has none of them.
func (s *Service) grown(growing *Growers, limit int) *Service {
	served := noted(s, growing, func(e *Endpoint, g Growing) bool {
		e.Part = g.Part
		return !e.Drained()
	})
	if served == s {
		return s
	}
	return served.fitted(limit)
}
