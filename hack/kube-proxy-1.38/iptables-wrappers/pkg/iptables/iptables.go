// Package iptables stands in for the commands of iptables that kube-proxy and kubelet 1.38 run. Not every module proxy
// has the version that Kubernetes names, and tests run kube-proxy in its nftables mode. It runs no command: New fails
// and NewBestEffort finds no family, so kube-proxy's modes iptables and ipvs end at the start, and kubelet writes no
// rules.
package iptables

import (
	"bytes"
	"context"
	"errors"
	"time"

	"k8s.io/utils/set"
)

var errNotHere = errors.New("iptables is not in this build of kube-proxy")

type (
	// Table is a table of iptables.
	Table string
	// Chain is a chain of a table.
	Chain string
	// Protocol is an IP family.
	Protocol string
	// RulePosition says where a rule is added.
	RulePosition string
	// Mode says which iptables is looked for.
	Mode string
)

// The names that kube-proxy and kubelet use.
const (
	TableNAT    Table = "nat"
	TableFilter Table = "filter"
	TableMangle Table = "mangle"

	ChainPrerouting  Chain = "PREROUTING"
	ChainPostrouting Chain = "POSTROUTING"
	ChainInput       Chain = "INPUT"
	ChainOutput      Chain = "OUTPUT"
	ChainForward     Chain = "FORWARD"

	ProtocolIPv4 Protocol = "IPv4"
	ProtocolIPv6 Protocol = "IPv6"

	Prepend RulePosition = "-I"
	Append  RulePosition = "-A"

	DetectHostMode   Mode = "host"
	UseInstalledMode Mode = "installed"
)

// Interface is one family's iptables. Nothing here makes one.
type Interface interface {
	Protocol() Protocol
	IsIPv6() bool
	EnsureChain(context.Context, Table, Chain) (bool, error)
	FlushChain(context.Context, Table, Chain) error
	DeleteChain(context.Context, Table, Chain) error
	EnsureRule(context.Context, RulePosition, Table, Chain, ...string) (bool, error)
	DeleteRule(context.Context, Table, Chain, ...string) error
	SaveInto(context.Context, Table, *bytes.Buffer) error
	Restore(context.Context, []byte) error
	Monitor(context.Context, Chain, []Table, func(), time.Duration)
}

// ParseError is an error of iptables-restore at a line.
type ParseError interface {
	error
	Line() int
}

// New fails.
func New(context.Context, Protocol, Mode) (Interface, error) { return nil, errNotHere }

// NewBestEffort returns no family.
func NewBestEffort(context.Context, Mode) map[Protocol]Interface { return nil }

// IsNotFoundError is false: no error here comes from iptables.
func IsNotFoundError(error) bool { return false }

// MakeChainLine returns nothing: nobody reads it.
func MakeChainLine(Chain) string { return "" }

// GetChainsFromTable finds none.
func GetChainsFromTable([]byte) set.Set[Chain] { return nil }

// ExtractLines returns no line.
func ExtractLines([]byte, int, int) string { return "" }
