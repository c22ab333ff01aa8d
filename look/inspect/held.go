package inspect

import (
	"fmt"
	"time"

	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// Held is the connections that are held at frontends without endpoints. A client that has given up counts until the
// hold time of its connection ends.
type Held struct {
	Connections int
	// Longest is how long the one that waits for longest has waited.
	Longest time.Duration
}

// Add adds a connection that has waited for so long.
func (h *Held) Add(waited time.Duration) {
	h.Connections++
	h.Longest = max(h.Longest, waited)
}

// String is, for example, "2 connections wait, the first for 12s"; "no connection waits" for none.
func (h Held) String() string {
	longest := h.Longest.Truncate(time.Second)
	switch h.Connections {
	case 0:
		return "no connection waits"
	case 1:
		return fmt.Sprintf("1 connection waits, for %s", longest)
	}
	return fmt.Sprintf("%d connections wait, the first for %s", h.Connections, longest)
}

// HeldKernel has the flows that rules remember.
type HeldKernel interface {
	// Learned returns the entries of a dynamic set, none if there is no such table or set.
	Learned(table nft.TableID, set *nft.Set) ([]kernel.Entry, error)
}

// EachHeld visits each connection that is held in a table, with its frontend. of says what the table has at a frontend.
// The connection is that of the first frontend that the rules find, and counts for no other if that one does not hold
// any more.
func EachHeld(k HeldKernel, table nft.TableID, of func(ruleset.Place) (r ruleset.Reach, found bool),
	visit func(at ruleset.Place, waited time.Duration)) error {
	flows, err := k.Learned(table, ruleset.HeldFlows())
	if err != nil {
		return fmt.Errorf("read the connections that are held: %w", err)
	}
	for _, flow := range flows {
		places, port := ruleset.PlacesOfFlow(table.Family, flow.Key)
		for _, at := range places {
			r, found := of(at)
			if !found || at.Ranged() && !r.Ranges.Has(port) {
				continue
			}
			if r.Holds {
				visit(at, flow.Timeout-flow.Expires)
			}
			break
		}
	}
	return nil
}

// ReadHeld reads how many connections of each Service are held, for the rows of Services.
func (t *Tables) ReadHeld(k HeldKernel) error {
	t.held = map[service.Name]Held{}
	for _, c := range t.contents {
		at := map[ruleset.Place]service.Name{}
		for _, s := range t.services {
			for _, p := range s.Ports {
				for _, f := range p.Frontends {
					if f.Family == c.Table.Family && f.Fate == obstacle.Held {
						at[f.Place()] = s.Service.Name
					}
				}
			}
		}
		if len(at) == 0 {
			continue
		}
		of := func(p ruleset.Place) (r ruleset.Reach, found bool) {
			r, found = ruleset.ReachAt(c, p)
			r.Holds = at[p] != ""
			return r, found
		}
		if err := EachHeld(k, c.Table, of, func(p ruleset.Place, waited time.Duration) {
			h := t.held[at[p]]
			h.Add(waited)
			t.held[at[p]] = h
		}); err != nil {
			return err
		}
	}
	return nil
}
