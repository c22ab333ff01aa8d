package otherproxy

import "slices"

// Effects says what rules may do to packets.
type Effects struct {
	// Drops: a rule drops or rejects packets.
	Drops bool `json:"drops"`
	// Queues: a rule hands packets to another program, such as a network policy engine, which decides about them.
	Queues bool `json:"queues"`
	// Translates: a rule changes the destination or the source.
	Translates bool `json:"translates"`
	// Untracks: a rule takes packets out of connection tracking, as NodeLocal DNSCache does. Chains of type nat
	// do not see such packets.
	Untracks bool `json:"untracks"`
	// Marks: a rule sets the mark of packets. MarksConnections: a rule sets the mark of connections, or CONNMARK
	// takes a packet's mark from there. Routes often go by marks.
	Marks            bool `json:"marks"`
	MarksConnections bool `json:"marksConnections"`
}

// Add adds what further rules may do.
func (e *Effects) Add(o Effects) {
	e.Drops, e.Queues = e.Drops || o.Drops, e.Queues || o.Queues
	e.Translates, e.Untracks = e.Translates || o.Translates, e.Untracks || o.Untracks
	e.Marks, e.MarksConnections = e.Marks || o.Marks, e.MarksConnections || o.MarksConnections
}

// EffectsOfTarget is about the targets of iptables.
func EffectsOfTarget(name string) Effects {
	return Effects{
		Drops:            slices.Contains([]string{"DROP", "REJECT", "TARPIT", "SYNPROXY"}, name),
		Queues:           name == "NFQUEUE",
		Translates:       slices.Contains([]string{"DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP", "TPROXY"}, name),
		Untracks:         slices.Contains([]string{"CT", "NOTRACK"}, name),
		Marks:            name == "MARK",
		MarksConnections: name == "CONNMARK",
	}
}
