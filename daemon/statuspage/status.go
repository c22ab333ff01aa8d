package statuspage

import (
	"fmt"
	"slices"
	"time"

	"nftproxy/look/nodestatus"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// troubles are what somebody has to do something about, the worst first. The other states come and go with pods.
func troubles() []obstacle.Kind {
	return []obstacle.Kind{obstacle.Quarantined, obstacle.Conflict, obstacle.BeyondBound, obstacle.Problems}
}

// status visits each endpoint, as the list does.
func (p *Page) status(now time.Time) nodestatus.Status {
	s := nodestatus.Status{
		Node: p.config.Node, Version: p.config.Version, Time: now.UTC(), Started: p.config.Started.UTC(),
		Tables: []nodestatus.Table{}, States: map[string]int{}, Warnings: []string{},
		Troubled: []nodestatus.Service{}, LeftOut: []nodestatus.Endpoint{},
	}
	s.Ready, s.ReadyText = p.config.Ready()
	health := p.config.Status()
	s.Healthy = health.Healthy
	if p.config.Beside != nil {
		b := p.config.Beside()
		s.Behind, s.Configuration = b.Behind, b.Configuration
		s.Warnings = append(s.Warnings, b.Warnings...)
	}
	v := p.newest.Load()
	for i, f := range nft.Families() {
		t := nodestatus.Table{Family: f.Name(), Name: p.config.Table}
		if updated := health.Status[f.Name()].LastUpdated; !updated.IsZero() {
			updated = updated.UTC()
			t.Updated = &updated
		}
		if v != nil && v.failures[i] != "" && v.snapshot.Serves(f) {
			t.Error = v.failures[i]
		}
		s.Tables = append(s.Tables, t)
	}
	if list, _ := p.history.last(); len(list) > 0 {
		r := list[len(list)-1]
		s.LastSync = &nodestatus.Sync{End: r.start.Add(r.took).UTC(), LatencySeconds: r.latency.Seconds(),
			TookSeconds: r.took.Seconds(), Written: r.written, Error: r.err}
	}
	if v != nil {
		v.addServices(&s)
		v.addLeftOut(&s)
	}
	s.FindFaults()
	return s
}

func (v *view) addServices(s *nodestatus.Status) {
	s.Services, s.Elements = v.snapshot.Services.Len(), v.elements()
	kinds := troubles()
	troubled := make([][]nodestatus.Service, len(kinds))
	for name, svc := range v.snapshot.Services.All() {
		for i := range svc.Ports {
			s.Endpoints += svc.Ports[i].Endpoints.Len()
		}
		found := v.obstaclesOf(svc)
		s.States[found.Worst().String()]++
		rank := slices.IndexFunc(kinds, found.Has)
		if rank < 0 {
			continue
		}
		s.TroubledCount++
		if len(troubled[rank]) < nodestatus.MaxListed {
			troubled[rank] = append(troubled[rank], v.troubledService(name, found))
		}
	}
	for _, part := range v.otherParts() {
		s.States[obstacle.Quarantined.String()]++
		s.TroubledCount++
		troubled[0] = append(troubled[0], nodestatus.Service{Name: part, States: []string{obstacle.Quarantined.String()},
			Problems: []string{cut(v.quarantined[part].Error(), maxError)}})
	}
	all := slices.Concat(troubled...)
	s.Troubled = append(s.Troubled, all[:min(len(all), nodestatus.MaxListed)]...)
}

func (v *view) troubledService(name service.Name, found obstacle.Set) nodestatus.Service {
	namespace, bare := name.Split()
	t := nodestatus.Service{Namespace: namespace, Name: bare, States: []string{}, Problems: []string{}}
	for _, k := range obstacle.OfServices() {
		if k != obstacle.None && found.Has(k) {
			t.States = append(t.States, k.String())
		}
	}
	if err := v.quarantined[string(name)]; err != nil {
		t.Problems = append(t.Problems, err.Error())
	}
	for c := range v.snapshot.Conflicts.At(name).All() {
		if len(t.Problems) == maxListed {
			break
		}
		why := obstacle.Lost(v.snapshot.Owners.Over(name, c.Claim), c.Protected).Why
		t.Problems = append(t.Problems, fmt.Sprintf("%s: %s", c.Claim, why))
	}
	t.Problems = append(append(t.Problems, v.snapshot.Bounds(name)...), v.problems(name)...)
	t.Problems = t.Problems[:min(len(t.Problems), maxListed)]
	for i := range t.Problems {
		t.Problems[i] = cut(t.Problems[i], maxError)
	}
	return t
}

func (v *view) addLeftOut(s *nodestatus.Status) {
	for name, adjusted := range v.snapshot.Adjustments.All() {
		namespace, bare := name.Split()
		for _, a := range *adjusted {
			if a.Share != service.NoShare {
				continue // A new one, whose share grows.
			}
			s.LeftOutCount++
			if len(s.LeftOut) < nodestatus.MaxListed {
				s.LeftOut = append(s.LeftOut, nodestatus.Endpoint{Namespace: namespace, Service: bare,
					Endpoint: a.Addr.String(), Protocol: a.Protocol.String(), Since: a.Since.UTC(), Why: cut(a.Why, maxError)})
			}
		}
	}
}
