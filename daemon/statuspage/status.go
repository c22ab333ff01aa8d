package statuspage

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"nftproxy/look/inspect"
	"nftproxy/look/nodestatus"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// troubles are what somebody has to do something about, the worst first. The other states come and go with pods.
func troubles() []obstacle.Kind {
	return []obstacle.Kind{obstacle.Quarantined, obstacle.Conflict, obstacle.BeyondBound, obstacle.Problems}
}

// maxNames is how many names of Services a request may have.
const maxNames = 100

// statusOf answers with the status, of all Services or of those that the query names.
func (p *Page) statusOf(now time.Time, query url.Values) *answer {
	names := query[nodestatus.QueryService]
	selected, err := inspect.NewSelection(query.Get(nodestatus.QueryNamespace), names[:min(len(names), maxNames)])
	if err != nil {
		return p.trouble(http.StatusBadRequest, "Cannot show that", cut(err.Error(), maxError)+".")
	}
	if v := p.newest.Load(); v != nil {
		if err := selected.Unknown(inspect.NamesOf(&v.snapshot), "what this node serves"); err != nil {
			return p.trouble(http.StatusNotFound, "No such Service", cut(err.Error(), maxError)+".")
		}
	}
	s := p.status(now, selected)
	return &answer{code: http.StatusOK, status: &s}
}

// status visits each endpoint of the selected Services, as the list does.
func (p *Page) status(now time.Time, selected inspect.Selection) nodestatus.Status {
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
		if len(selected.Services) == 0 && selected.Namespace == "" {
			s.Elements = v.elements()
		}
		v.addServices(&s, selected)
		v.addLeftOut(&s, selected)
	}
	s.FindFaults()
	return s
}

func (v *view) addServices(s *nodestatus.Status, selected inspect.Selection) {
	kinds := troubles()
	troubled := make([][]nodestatus.Service, len(kinds))
	for name, svc := range v.snapshot.Services.All() {
		if !selected.Has(name) {
			continue
		}
		s.Services++
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

func (v *view) addLeftOut(s *nodestatus.Status, selected inspect.Selection) {
	for name, adjusted := range v.snapshot.Adjustments.All() {
		namespace, bare := name.Split()
		for _, a := range *adjusted {
			if a.Share != service.NoShare || !selected.Has(name) {
				continue // A new one, whose share grows, or one of another Service.
			}
			s.LeftOutCount++
			if len(s.LeftOut) < nodestatus.MaxListed {
				s.LeftOut = append(s.LeftOut, nodestatus.Endpoint{Namespace: namespace, Service: bare,
					Endpoint: a.Addr.String(), Protocol: a.Protocol.String(), Since: a.Since.UTC(), Why: cut(a.Why, maxError)})
			}
		}
	}
}
