package service

import (
	"fmt"
)

// Flows says which share of new connections the node follows: one of so many, chosen at random. Only the values of
// FlowsRates are used, since each one in use costs chains.
type Flows uint16

// FlowsAsNode leaves it to the node's --nftproxy-flows. FlowsOff follows none.
const (
	FlowsAsNode Flows = 0
	FlowsOff    Flows = 1<<16 - 1
)

// FlowsKey is the key of the option.
const FlowsKey = "flows"

// FlowsRates are the values other than FlowsAsNode and FlowsOff: all connections, or one of so many.
func FlowsRates() []Flows { return []Flows{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024} }

// ParseFlows reads "off" or a share such as "1/16".
func ParseFlows(text string) (Flows, error) {
	for _, f := range append(FlowsRates(), FlowsOff) {
		if f.String() == text {
			return f, nil
		}
	}
	return FlowsAsNode, fmt.Errorf("not off, 1/1, or 1/N with a power of two up to 1/%d",
		FlowsRates()[len(FlowsRates())-1])
}

// String is what ParseFlows reads, and empty for FlowsAsNode.
func (f Flows) String() string {
	switch f {
	case FlowsAsNode:
		return ""
	case FlowsOff:
		return "off"
	}
	return fmt.Sprintf("1/%d", uint16(f))
}

// Of returns how many connections to the Service there are for each one that a node which follows f follows; 0 for
// none. A Service can have a smaller share than the node's, not a greater one: it is the node that pays.
func (f Flows) Of(s *Service) int {
	own := s.Options.Flows
	switch {
	case f == FlowsAsNode || f == FlowsOff || own == FlowsOff:
		return 0
	}
	return max(int(f), int(own))
}

// Rate is Of for what belongs to no Service, or to all.
func (f Flows) Rate() int { return f.Of(&Service{}) }

func flowsOption() option {
	return option{
		key: FlowsKey,
		set: func(o *Options, value string) error {
			f, err := ParseFlows(value)
			if err != nil {
				return fmt.Errorf("%w; the node's --nftproxy-flows is in force", err)
			}
			o.Flows = f
			return nil
		},
		get: func(o *Options) string { return o.Flows.String() },
	}
}
