package nft

import (
	"fmt"
	"strings"
	"time"

	"nftproxy/model/treap"
)

// Timeout declares an object of time-outs, which rules give to connections (SetTimeout). Its protocol is TCP or UDP,
// and its times are whole seconds. States that it does not name get the settings that the network namespace has when
// the kernel makes the object (tcp_timeout_nlattr_to_obj).
//
// The kernel cannot change an object, and to delete one costs others: it walks through all connections, and some
// kernels drop all packets that wait in queues (docs/internals/options.md, Time-outs). So Plan only adds them, and they
// go with their table. The name of an object has to say its values: Plan makes the whole table again if it has a wanted
// object with other values, which is another program's.
type Timeout struct {
	Name     string
	Protocol uint8
	// Unreplied and Replied are UDP's, Established is TCP's.
	Unreplied, Replied, Established time.Duration
}

// AddTimeout adds an object of time-outs. One of that name is an error.
type AddTimeout struct {
	Table   TableID
	Timeout Timeout
}

// SetTimeout gives a new connection the time-outs of the object of that name. It does nothing to a connection of
// another protocol, and to one that is not new. A connection keeps what it has for its life. Needs a kernel with
// CONFIG_NF_CONNTRACK_TIMEOUT.
type SetTimeout struct{ Name string }

func (SetTimeout) statement() {}

// Text is, for example, `ct timeout set "udp-30s-10m"`.
func (s SetTimeout) Text(Family) string { return fmt.Sprintf("ct timeout set %q", s.Name) }

func (o AddTimeout) table() TableID { return o.Table }

// Text is, for example, "add ct timeout ip nftproxy tcp-2h { protocol tcp; l3proto ip; policy = { established : 7200 };
// }".
func (o AddTimeout) Text() string {
	return fmt.Sprintf("add ct timeout %s %s { %s; }\n", o.Table, o.Timeout.Name,
		strings.Join(o.Timeout.declaration(o.Table.Family), "; "))
}

// declaration is the object's lines in nft's syntax. nft 1.0.6 reads no units.
func (t Timeout) declaration(f Family) []string {
	var states []string
	for _, s := range []struct {
		name string
		time time.Duration
	}{{"unreplied", t.Unreplied}, {"replied", t.Replied}, {"established", t.Established}} {
		if s.time > 0 {
			states = append(states, fmt.Sprintf("%s : %d", s.name, s.time/time.Second))
		}
	}
	return []string{"protocol " + ProtocolText(t.Protocol), "l3proto " + f.String(), "policy = { " + strings.Join(states,
		", ") + " }"}
}

// TimeoutsByName returns the objects by name, as a Table holds them.
func TimeoutsByName(list ...Timeout) treap.Map[string, Timeout] {
	var m treap.Map[string, Timeout]
	for _, t := range list {
		m = m.Set(t.Name, t)
	}
	return m
}

// planTimeouts adds objects.
func (p *tablePlan) planTimeouts() {
	have := p.have.applied.Timeouts
	for name, t := range p.want.Timeouts.All() {
		if _, there := have.Get(name); !there {
			p.phases.addOp(phaseNewTimeouts, AddTimeout{p.want.ID(), t})
			have = have.Set(name, t)
		}
	}
	p.next.applied.Timeouts = have
}

// otherTimeouts says that the table has a wanted object with other values.
func (p *tablePlan) otherTimeouts() bool {
	if p.have.applied == nil {
		return false
	}
	for name, t := range p.want.Timeouts.All() {
		if have, there := p.have.applied.Timeouts.Get(name); there && have != t {
			return true
		}
	}
	return false
}
