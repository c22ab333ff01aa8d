package service

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"nftproxy/model/spelling"
)

// OptionPrefix begins the keys of the annotations that hold a Service's Options, except for UDPHandlingAnnotation and
// those of other projects (OtherOption).
const OptionPrefix = "nftproxy.io/"

// UDPHandlingAnnotation holds Options.UDPHandling. It is Kubernetes' own (KEP-5989, alpha).
const UDPHandlingAnnotation = "service.kubernetes.io/udp-connection-handling"

// OptionKey returns the key of the option that an annotation asks for: the name after OptionPrefix, or the whole
// UDPHandlingAnnotation. ok is false for an annotation that is not ours. The key may be unknown.
func OptionKey(annotation string) (key string, ok bool) {
	if annotation == UDPHandlingAnnotation {
		return annotation, true
	}
	return strings.CutPrefix(annotation, OptionPrefix)
}

// OptionAnnotation returns the annotation of an option's key.
func OptionAnnotation(key string) string {
	if key == UDPHandlingAnnotation || key == SourcesPolicyAnnotation {
		return key
	}
	return OptionPrefix + key
}

// Options are what a Service asks for by annotations (docs/choices.md). The zero value asks for nothing.
type Options struct {
	_ [0]func() // Equal compares them, == cannot

	// ExternalFailover says what becomes of connections from outside where ExternalPolicy is Local and the node has no
	// endpoint for them.
	ExternalFailover Failover
	// Hold is for how long the first packets of a connection to a port without endpoints are dropped before they are
	// refused, in whole seconds, MaxHold at most; 0 refuses them at once.
	Hold time.Duration
	// Balance says how new connections get their endpoints.
	Balance Balance
	// Departed says what becomes of established connections to an endpoint that leaves the service.
	Departed Departed
	// Eject says what is done about endpoints that do not answer the node.
	Eject Eject
	// PortRanges are the ranges of ports that it asks for beside its ports.
	PortRanges RangesByProtocol
	// SourceRanges says which sources may reach the external IPs and node ports; nil admits all. Those for the
	// LoadBalancerIPs are in Service.Sources.
	SourceRanges *Sources
	// SourcesPolicy says what the ranges for the LoadBalancerIPs were before they became Service.Sources.
	SourcesPolicy SourcesPolicy
	// SlowStart is in what time a new endpoint grows to its weight, in whole seconds; 0 for at once.
	SlowStart time.Duration
	// TCPTimeouts and UDPTimeouts are those of its connections; zero for the node's.
	TCPTimeouts, UDPTimeouts Timeouts
	// UDPHandling says what becomes of UDP flows to an endpoint that terminates.
	UDPHandling UDPHandling
	// Flows says which share of its connections the node follows.
	Flows Flows
}

// Equal reports whether both ask for the same.
func (o Options) Equal(p Options) bool {
	return o.ExternalFailover == p.ExternalFailover && o.Hold == p.Hold && o.Balance == p.Balance &&
		o.Departed == p.Departed && o.Eject == p.Eject && o.SourcesPolicy == p.SourcesPolicy &&
		o.PortRanges == p.PortRanges && o.SourceRanges.Equal(p.SourceRanges) && o.SlowStart == p.SlowStart &&
		o.TCPTimeouts == p.TCPTimeouts && o.UDPTimeouts == p.UDPTimeouts && o.UDPHandling == p.UDPHandling &&
		o.Flows == p.Flows
}

// option is one key of Options.
type option struct {
	// key is as OptionKey returns it.
	key string
	// set reads a value. The error says what is allowed. With an error it changes nothing, unless the option has to
	// hold even where its value is bad.
	set func(o *Options, value string) error
	// get returns the value in its shortest form that set reads, empty where the Service asks for nothing.
	get func(o *Options) string
}

// allOptions lists the keys, sorted. A new option is a field of Options, a comparison in Options.Equal and an entry
// here.
func allOptions() []option {
	return []option{
		wordOption("balance", func(o *Options) *Balance { return &o.Balance }, balanceWords(), 0,
			"the node's --nftproxy-balance"),
		departedOption(),
		wordOption("eject", func(o *Options) *Eject { return &o.Eject }, ejectWords(), EjectOff,
			"the node's --nftproxy-eject"),
		wordOption("external-failover", func(o *Options) *Failover { return &o.ExternalFailover }, failoverWords(), 0,
			"drop"),
		flowsOption(),
		noEndpointsOption(),
		portRangesOption(),
		wordOption(SourcesPolicyAnnotation, func(o *Options) *SourcesPolicy { return &o.SourcesPolicy },
			[]string{"allow", "deny"}, 0, "allow"),
		wordOption(UDPHandlingAnnotation, func(o *Options) *UDPHandling { return &o.UDPHandling },
			[]string{"Default", "PreserveDuringTermination"}, 0, "Default"), // as in KEP-5989, not merged in 2026-11
		slowStartOption(),
		{"source-ranges", setSourceRanges, func(o *Options) string { return o.SourceRanges.text() }},
		tcpTimeoutOption(),
		udpTimeoutsOption(),
	}
}

// AllOptions yields the keys of all options, as OptionKey returns them. So SourcesPolicyAnnotation is not among them.
func AllOptions() func(yield func(key string) bool) {
	return func(yield func(key string) bool) {
		for _, known := range allOptions() {
			if known.key != SourcesPolicyAnnotation && !yield(known.key) {
				return
			}
		}
	}
}

// wordOption is an option whose values are words. The values of the words follow each other, from the first one's on.
// Without the annotation the value is 0, and unset says what is in force.
func wordOption[T ~uint8](key string, field func(*Options) *T, words []string, first T, unset string) option {
	return option{
		key: key,
		set: func(o *Options, value string) error {
			i := slices.Index(words, value)
			if i < 0 {
				last := len(words) - 1
				meant := spelling.DidYouMean(value, words)
				return fmt.Errorf("not %s or %s; %s%s is in force", strings.Join(words[:last], ", "), words[last], meant, unset)
			}
			*field(o) = first + T(i)
			return nil
		},
		get: func(o *Options) string {
			if v := *field(o); v != 0 {
				return words[v-first]
			}
			return ""
		},
	}
}

// Set reads the value of a key, as OptionKey or OtherOption returns it. If the key is unknown or the value cannot be
// used, the error says what is allowed. Then it changes nothing, but that bad source ranges admit nobody.
func (o *Options) Set(key, value string) error {
	for _, known := range allOptions() {
		if known.key == key {
			return known.set(o, value)
		}
	}
	var keys []string
	for known := range AllOptions() {
		keys = append(keys, OptionAnnotation(known))
	}
	meant := spelling.DidYouMean(OptionAnnotation(key), keys)
	if _, udp, _ := strings.Cut(UDPHandlingAnnotation, "/"); meant == "" && spelling.Nearest(key, []string{udp}) != "" {
		meant = "did you mean " + UDPHandlingAnnotation + "? "
	}
	return fmt.Errorf("unknown key; %sthere are %s", meant, strings.Join(keys, ", "))
}

// MisspeltKeys are the annotations that MeantOption has to see: each that is so, or begins so or ends so where a star
// stands for the rest. Of those whose prefix and key are both mistyped, some are not among them.
func MisspeltKeys() []string {
	_, udp, _ := strings.Cut(UDPHandlingAnnotation, "/")
	prefix := strings.TrimSuffix(UDPHandlingAnnotation, "/"+udp)
	keys := []string{"n*", "N*", "f*", "F*", prefix + "*", "*/" + udp}
	for key := range AllOptions() {
		keys = append(keys, "*/"+key)
	}
	return keys
}

// MeantOption returns the option of a Service that was meant by an annotation that is not ours since its prefix is
// wrong, such as nftproxy/balance, nftproxy.com/balance or nftprox.io/balance; empty if there is none.
func MeantOption(annotation string) string {
	if _, ours := OptionKey(annotation); ours {
		return ""
	}
	_, name, _ := strings.Cut(annotation, "/")
	_, udp, _ := strings.Cut(UDPHandlingAnnotation, "/")
	if name == udp || spelling.Nearest(annotation, []string{UDPHandlingAnnotation}) != "" {
		return UDPHandlingAnnotation
	}
	return MeantBy(annotation, slices.Collect(AllOptions()))
}

// MeantBy does the same for annotations with OptionPrefix and one of the keys.
func MeantBy(annotation string, keys []string) string {
	prefix, name, found := strings.Cut(annotation, "/")
	domain := strings.TrimSuffix(OptionPrefix, "/")
	bare, _, _ := strings.Cut(domain, ".")
	if !found {
		for i, c := range annotation { // as nftproxy-balance or nftproxy.io.balance
			if strings.ContainsRune("-._", c) && i <= len(OptionPrefix) &&
				spelling.Nearest(annotation[:i], []string{bare, domain}) != "" {
				if key := spelling.Nearest(annotation[i+1:], keys); key != "" {
					return OptionAnnotation(key)
				}
			}
		}
		return ""
	}
	near := func(label string) bool { return spelling.Nearest(label, []string{bare}) != "" }
	labels := strings.Split(prefix, ".")
	// The key tells most annotations of others from ours.
	key := spelling.Nearest(name, keys)
	if _, ours := OptionKey(annotation); ours || key == "" ||
		spelling.Nearest(prefix, []string{domain}) == "" && !slices.ContainsFunc(labels, near) {
		return ""
	}
	return OptionAnnotation(key)
}

// All yields the options that the Service asks for: the keys, sorted, and the values, as Set reads both.
func (o Options) All() func(yield func(key, value string) bool) {
	return func(yield func(key, value string) bool) {
		if o.Equal(Options{}) {
			return
		}
		for _, known := range allOptions() {
			if value := known.get(&o); value != "" && !yield(known.key, value) {
				return
			}
		}
	}
}

// String reads like "external-failover=pass", with blanks between several options, and is empty for none.
func (o Options) String() string {
	var words []string
	for key, value := range o.All() {
		words = append(words, key+"="+value)
	}
	return strings.Join(words, " ")
}

// Failover says what becomes of a connection from outside of the cluster to an address or node port with external
// policy Local while the node has no endpoint for it.
type Failover uint8

// FailoverDrop drops it, as Kubernetes promises. FailoverPass leaves it to routing, untranslated, so that another node
// or cluster that announces the address may serve it; there is nowhere to pass a node port to. FailoverCluster sends it
// to any endpoint, as policy Cluster would.
const (
	FailoverDrop Failover = iota
	FailoverPass
	FailoverCluster
)

func failoverWords() []string { return []string{"drop", "pass", "cluster"} }

func (f Failover) String() string { return failoverWords()[f] }

// FailoverAt returns what holds at a claim of the service, an address and port or a node port, while the node has no
// endpoint for it. It is FailoverDrop at cluster IPs and with external policy Cluster, where it never comes to that.
func (s *Service) FailoverAt(c Claim) Failover {
	f := s.Options.ExternalFailover
	if s.ExternalPolicy == Cluster || f == FailoverPass && c.Addr.IsUnspecified() ||
		slices.Contains(s.ClusterIPs, c.Addr) {
		return FailoverDrop
	}
	return f
}

// Eject says what is done about endpoints that do not answer the node (model/ejection).
type Eject uint8

// EjectAsNode leaves it to the node's --nftproxy-eject. EjectOff does nothing, EjectReport says what would be done,
// EjectOn leaves the endpoints out.
const (
	EjectAsNode Eject = iota
	EjectOff
	EjectReport
	EjectOn
)

func ejectWords() []string { return []string{"off", "report", "on"} }

func (e Eject) String() string { return append([]string{"as the node"}, ejectWords()...)[e] }

// Of returns what is done for a Service of a node that does e.
func (e Eject) Of(s *Service) Eject { return cmp.Or(s.Options.Eject, e) }
