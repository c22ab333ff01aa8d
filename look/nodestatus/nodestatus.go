// Package nodestatus is what a running nftproxy says about its node, as one JSON object: the metrics server serves it,
// nftproxy status prints it, and kubectl nftproxy status asks every node for it. Later versions add fields and change
// none, so that the versions of a cluster's nodes and of the plugin may differ.
//
// The package finds nothing out: daemon/statuspage fills a Status in from the loop's syncs.
package nodestatus

import (
	"fmt"
	"strings"
	"time"
)

// Query is the query by which the path of the status page answers with a Status in place of the page. Behind it,
// parameters may limit what the Status says of Services to those of a namespace, and to Services by their names.
const (
	Query          = "output=json"
	QueryNamespace = "namespace"
	QueryService   = "service"
)

// MaxListed is how many Services, endpoints or parts each list of a Status names. The counts beside a list are of all.
const MaxListed = 50

// Status is the state of one node by its nftproxy.
type Status struct {
	Node    string `json:"node"`
	Version string `json:"version"`
	// Time is when the status was made, and Started when the process was, both by the node's clock.
	Time    time.Time `json:"time"`
	Started time.Time `json:"started"`

	// Ready, with the text of /readyz, says that the rules have been in force in each family that needs them.
	Ready     bool   `json:"ready"`
	ReadyText string `json:"readyText"`
	// Healthy says that no change waits too long for the kernel, as /livez does.
	Healthy bool    `json:"healthy"`
	Tables  []Table `json:"tables"`
	// LastSync is null before the first sync has ended.
	LastSync *Sync `json:"lastSync"`
	// Behind is null while the API server tells of everything.
	Behind *Behind `json:"behind"`
	// Warnings are sentences about the node, such as another proxy beside this one.
	Warnings []string `json:"warnings"`

	// Services, Endpoints and Elements count what is served: an endpoint once for each port of a Service, an element of
	// the tables once. Elements is 0 in a Status about some Services only.
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	Elements  int `json:"elements"`
	// States counts the Services by their worst state, in the words of get services.
	States map[string]int `json:"states"`
	// Troubled names those whose objects somebody has to change, or that the kernel refused, the worst first.
	Troubled      []Service `json:"troubled"`
	TroubledCount int       `json:"troubledCount"`
	// LeftOut are the endpoints that get no new connections because they do not answer.
	LeftOut      []Endpoint `json:"leftOut"`
	LeftOutCount int        `json:"leftOutCount"`

	// Configuration is a digest of all flags but the node's name.
	Configuration string `json:"configuration"`

	// Faults says in sentences why the node is not well: none if it is.
	Faults []string `json:"faults"`
}

// Refusal is what the server answers in place of a Status, with another code than 200.
type Refusal struct {
	Error string `json:"error"`
}

// Table is the table of one family.
type Table struct {
	Family string `json:"family"` // IPv4 or IPv6
	Name   string `json:"name"`
	// Updated is when the newest rules were last written or confirmed; null if they never were.
	Updated *time.Time `json:"updated"`
	// Error is why the newest rules are not in force; empty if they are, or if no Service is in the family.
	Error string `json:"error"`
}

// Sync is an update of the tables.
type Sync struct {
	End time.Time `json:"end"`
	// LatencySeconds is the time from the oldest change until it was in force; 0 where nothing had changed.
	LatencySeconds float64 `json:"latencySeconds"`
	TookSeconds    float64 `json:"tookSeconds"`
	// Written counts chains, sets, rules and elements.
	Written int    `json:"written"`
	Error   string `json:"error"`
}

// Behind names the lists that the API server does not tell of.
type Behind struct {
	Resources []string  `json:"resources"`
	Since     time.Time `json:"since"`
	Error     string    `json:"error"`
}

// Service is one with trouble. Namespace is empty for a part of the tables that belongs to no Service.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// States are all of its states, in the words of get services, the worst first; Problems says what cannot be used of
	// its objects, or why the kernel refused it.
	States   []string `json:"states"`
	Problems []string `json:"problems"`
}

// Endpoint is one that is left out.
type Endpoint struct {
	Namespace string    `json:"namespace"`
	Service   string    `json:"service"`
	Endpoint  string    `json:"endpoint"` // address:port
	Protocol  string    `json:"protocol"`
	Since     time.Time `json:"since"`
	Why       string    `json:"why"`
}

// Quarantined counts the Services and parts that the kernel refused.
func (s *Status) Quarantined() int { return s.States["quarantined"] }

// FindFaults sets Faults by the other fields. What tenants write, such as a mistyped annotation, is no fault of the
// node, and neither is an endpoint that does not answer.
func (s *Status) FindFaults() {
	faults := []string{}
	add := func(is bool, format string, args ...any) {
		if is {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	add(!s.Ready, "not ready: %s", strings.ReplaceAll(s.ReadyText, "\n", "; "))
	add(s.Ready && !s.Healthy, "unhealthy: a change has not reached the kernel for too long")
	for _, t := range s.Tables {
		add(s.Ready && t.Error != "", "the newest rules for %s are not in force: %s", t.Family, t.Error)
	}
	if b := s.Behind; b != nil {
		add(true, "the API server does not tell of %s: %s", strings.Join(b.Resources, ", "), b.Error)
	}
	add(s.Quarantined() > 0, "the kernel refused %d Services or common parts of the rules", s.Quarantined())
	s.Faults = append(faults, s.Warnings...)
}
