// Package preflight finds what an operator has to know about a node before nftproxy serves it: one
// finding for each thing that it needs or that may stand in its way, with what to do.
//
// It changes nothing on the node. It tries the kernel's features in a network namespace of its own,
// which goes with the call. It does not know the cluster: it asks no API server.
package preflight

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"

	"nftproxy/look/basechain"
	"nftproxy/node/otherproxy"
)

// baseChains lists the base chains of the node with the effects of their rules.
type baseChains func() ([]basechain.Chain, error)

// Level says how much a finding matters.
type Level string

// The levels, from the least to the worst.
const (
	Green  Level = "green"  // as nftproxy needs it
	Yellow Level = "yellow" // nftproxy works; some traffic or some feature may not
	Red    Level = "red"    // nftproxy cannot serve the node
)

// Finding is the outcome of one probe.
type Finding struct {
	// Probe names what was looked at, such as "kernel: session affinity".
	Probe string `json:"probe"`
	Level Level  `json:"level"`
	// Found says what is there, and Do what helps; Do is empty for Green.
	Found string `json:"found"`
	Do    string `json:"do"`
}

// Options are what the probes need to know.
type Options struct {
	// Table is the name of nftproxy's tables.
	Table string
	// NodePorts is the first and the last node port of the cluster.
	NodePorts [2]uint16
	// Addresses are those on which nftproxy's servers will listen, by their names.
	Addresses map[string]string
	// ServiceCIDRs are the cluster's ranges of cluster IPs; empty if they are not known.
	ServiceCIDRs []netip.Prefix
	// Proc is the directory /proc, or another for tests.
	Proc string
}

// Run runs all probes. A probe that cannot be made is a finding too.
func Run(ctx context.Context, o Options) []Finding {
	var all []Finding
	all = append(all, o.rights()...)
	all = append(all, o.kernelVersion())
	all = append(all, o.features()...)
	all = append(all, o.conntrack(ctx)...)
	all = append(all, o.proxies(ctx)...)
	all = append(all, felix(otherproxy.FindFelix))
	all = append(all, o.ports(ctx)...)
	chains := sync.OnceValues(basechain.List)
	all = append(all, o.chains(chains)...)
	all = append(all, o.marks(chains)...)
	all = append(all, o.queues(chains)...)
	all = append(all, o.routes(ctx)...)
	tables := sync.OnceValues(o.tables)
	all = append(all, o.networks(ctx, tables)...)
	all = append(all, o.bridges(tables)...)
	all = append(all, o.forwarding(tables)...)
	all = append(all, o.portRange())
	return all
}

// Worst is the worst level of the findings.
func Worst(findings []Finding) Level {
	worst := Green
	for _, f := range findings {
		if rank(f.Level) > rank(worst) {
			worst = f.Level
		}
	}
	return worst
}

func rank(l Level) int { return slices.Index([]Level{Green, Yellow, Red}, l) }

func green(probe, found string) Finding { return Finding{Probe: probe, Level: Green, Found: found} }

func yellow(probe, found, do string) Finding { return Finding{probe, Yellow, found, do} }

func red(probe, found, do string) Finding { return Finding{probe, Red, found, do} }

// failed is the finding of a probe that could not be made.
func failed(probe string, err error) Finding {
	return yellow(probe, "cannot be checked: "+err.Error(), "run nftproxy check as root on the node")
}

// byProbe sorts findings.
func byProbe(a, b Finding) int { return cmp.Compare(a.Probe, b.Probe) }
