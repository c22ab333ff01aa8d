package inspect

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// ServiceRow is one Service as the tables serve it.
type ServiceRow struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// ClusterIPs are the cluster IPs that the tables name. ExternalAddresses are all
	// other addresses: external IPs and those of load balancers, which the rules do not
	// tell apart.
	ClusterIPs        []netip.Addr `json:"clusterIPs"`
	ExternalAddresses []netip.Addr `json:"externalAddresses"`
	Ports             []PortRow    `json:"ports"`
	// The policies are Cluster or Local. A policy shows in the tables only where it
	// makes a difference; elsewhere it is Cluster.
	InternalTrafficPolicy string `json:"internalTrafficPolicy"`
	ExternalTrafficPolicy string `json:"externalTrafficPolicy"`
	// SessionAffinitySeconds is how long a client is remembered, 0 if it is not.
	SessionAffinitySeconds int64 `json:"sessionAffinitySeconds"`
	// Options are what annotations ask for and the tables do (docs/choices.md), by their keys without prefix. An option
	// shows only where it makes a difference; nftproxy.io/eject never does.
	Options map[string]string `json:"options"`
	// Endpoints is the number of endpoints of all ports that get new connections, and
	// LocalEndpoints those of them on this node.
	Endpoints      int `json:"endpoints"`
	LocalEndpoints int `json:"localEndpoints"`
	// Obstacles are what refuses or drops connections to the Service, or keeps an
	// address and port from it.
	Obstacles []Obstacle `json:"obstacles"`
	// HeldConnections is how many connections are held, and HeldSeconds how long the first of them has waited.
	HeldConnections int   `json:"heldConnections,omitempty"`
	HeldSeconds     int64 `json:"heldSeconds,omitempty"`
	// Problems are what cannot be used of the Service and its EndpointSlices. The tables do not tell: it is nil unless a
	// source of objects does.
	Problems []string `json:"problems"`
}

// PortRow is a port of a Service.
type PortRow struct {
	// Name is empty for a port without name. Port is 0 if the tables do not tell it: a
	// named port of which only the node port is left.
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	NodePort uint16 `json:"nodePort"`
	// Ranges are ranges of ports, such as "10000-20000,30000", in the place of name and number.
	Ranges         string        `json:"ranges,omitempty"`
	Endpoints      int           `json:"endpoints"`
	LocalEndpoints int           `json:"localEndpoints"`
	Frontends      []FrontendRow `json:"frontends"`
}

// FrontendRow is an address and port, or a node port, that leads to a Service.
type FrontendRow struct {
	// Frontend is, for example, "10.96.0.10:53/udp" or "node port 30053/udp".
	Frontend string `json:"frontend"`
	// Kind is clusterIP, external or nodePort. Family is IPv4 or IPv6.
	Kind   string `json:"kind"`
	Family string `json:"family"`
	// Fate is served, refused, held, dropped, or passed: left to routing. dropped-outside and
	// passed-outside are about connections from outside of the cluster only.
	Fate string `json:"fate"`
	// SourceRanges are the only clients that get in; null admits all.
	SourceRanges []netip.Prefix `json:"sourceRanges"`
	// Chains are those that the frontend's elements lead to.
	Chains []string `json:"chains"`
}

// Obstacle is one thing that refuses or drops connections to a Service (package obstacle).
type Obstacle struct {
	// Kind is no-endpoints, held, no-local-endpoints, source-ranges, others-source-ranges or
	// conflict.
	Kind string `json:"kind"`
	// Effect is refused, held, dropped, passed or not-served.
	Effect obstacle.Effect `json:"effect"`
	// Frontends are those that it stands before.
	Frontends []string `json:"frontends"`
	// Text says it in a sentence.
	Text string `json:"text"`
}

// ServiceRows returns the selected Services, by namespace and name.
func (t *Tables) ServiceRows(s Selection) []ServiceRow {
	rows := []ServiceRow{}
	for _, svc := range t.services {
		if t.selectsService(&s, svc) {
			rows = append(rows, t.serviceRow(svc))
		}
	}
	return rows
}

func (t *Tables) serviceRow(s *ruleset.Served) ServiceRow {
	svc := s.Service
	row := ServiceRow{
		ClusterIPs: append([]netip.Addr{}, s.ClusterIPs()...), ExternalAddresses: append([]netip.Addr{},
			slices.Concat(svc.ExternalIPs, svc.LoadBalancerIPs)...),
		Ports: []PortRow{}, InternalTrafficPolicy: svc.InternalPolicy.String(),
		ExternalTrafficPolicy:  svc.ExternalPolicy.String(),
		SessionAffinitySeconds: int64(svc.AffinityTimeout / time.Second), Options: map[string]string{},
	}
	row.Namespace, row.Name = svc.Name.Split()
	maps.Insert(row.Options, svc.Options.All())
	slices.SortFunc(row.ExternalAddresses, netip.Addr.Compare)
	for _, port := range s.Ports {
		p := t.portRow(port)
		row.Endpoints += p.Endpoints
		row.LocalEndpoints += p.LocalEndpoints
		row.Ports = append(row.Ports, p)
	}
	row.Obstacles = obstacles(s)
	if held, known := t.held[svc.Name]; known {
		row.HeldConnections, row.HeldSeconds = held.Connections, int64(held.Longest/time.Second)
		for i := range row.Obstacles {
			if row.Obstacles[i].Kind == obstacle.Holding.String() {
				row.Obstacles[i].Text += "; " + held.String()
			}
		}
	}
	return row
}

func (t *Tables) portRow(p *ruleset.ServedPort) PortRow {
	row := PortRow{Name: p.Name, Protocol: p.Protocol.String(), Port: p.Port.Port, NodePort: p.NodePort,
		Ranges: string(p.Ranges), Frontends: []FrontendRow{}}
	for a := range listsOf(p) {
		row.Endpoints++
		if t.onNode(p.Port, a) {
			row.LocalEndpoints++
		}
	}
	for _, f := range p.Frontends {
		row.Frontends = append(row.Frontends, frontendRow(f))
	}
	return row
}

func frontendRow(f *ruleset.Frontend) FrontendRow {
	row := FrontendRow{Frontend: f.Claim().String(), Kind: "external", Family: f.Family.Name(), Fate: string(f.Fate),
		Chains: append([]string{}, f.Chains...)}
	switch {
	case f.ClusterIP:
		row.Kind = "clusterIP"
	case f.IsNodePort():
		row.Kind = "nodePort"
	}
	if f.Sources != nil {
		row.SourceRanges = rangesOf(f)
	}
	return row
}

// rangesOf returns the ranges of a frontend's family, an empty list for none.
func rangesOf(f *ruleset.Frontend) []netip.Prefix {
	ranges, _ := f.Sources.Of(f.Family)
	return append([]netip.Prefix{}, ranges...)
}

// obstacles finds the obstacles of a Service. Equal ones are one. A node port may stand in both families.
func obstacles(s *ruleset.Served) []Obstacle {
	type place struct {
		obstacle.Obstacle
		frontend string
	}
	list, at, seen := []Obstacle{}, map[obstacle.Obstacle]int{}, map[place]bool{}
	add := func(o obstacle.Obstacle, before service.Claim) {
		i, known := at[o]
		if !known {
			i, list = len(list), append(list, Obstacle{Kind: o.Kind.String(), Effect: o.Effect, Text: o.String()})
			at[o] = i
		}
		if p := (place{o, before.String()}); !seen[p] {
			seen[p], list[i].Frontends = true, append(list[i].Frontends, p.frontend)
		}
	}
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			if o, stops := f.Fate.Obstacle(); stops {
				add(o, f.Claim())
			}
			if f.Sources != nil {
				add(obstacle.Fenced(s.Service.Name, f.SourcesOf, some(texts(rangesOf(f))), f.Family), f.Claim())
			}
		}
	}
	for _, lost := range s.Lost {
		add(obstacle.Lost(lost.Owner, ""), lost.Claim)
	}
	for i := range list {
		list[i].Text = fmt.Sprintf("%s: %s", some(list[i].Frontends), list[i].Text)
	}
	return list
}

// some joins the first few texts of a list, and counts the others.
func some(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

func texts[T fmt.Stringer](list []T) []string {
	all := make([]string, len(list))
	for i, v := range list {
		all[i] = v.String()
	}
	return all
}
