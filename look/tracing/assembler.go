package tracing

import (
	"slices"
	"time"

	"nftproxy/nft"
	"nftproxy/nft/livetrace"
)

// QuietPeriod is the time after a packet's last event after which its way counts as ended. The
// kernel reports each step at once, and does not say which one was the last.
const QuietPeriod = 100 * time.Millisecond

// QueuePeriod takes its place where the last event handed the packet to another program, such as a network policy
// engine: what that program gives back goes on.
const QueuePeriod = 3 * time.Second

// overtakers is how many events of other packets are read after a packet's last event before
// its way counts as ended while the queue is not empty. The queue keeps the order of events, and
// the events of one packet stand close together in it, however late they are read.
const overtakers = 1000

// Assembler puts events together to packets, of which several can be on their way at a time.
// It is not safe for concurrent use.
type Assembler struct {
	// mark is the table whose events begin a packet.
	mark     string
	protocol uint8
	limit    int
	names    Names
	open     []*Packet
	begun    int
	// events counts all events that were added.
	events uint64
}

// NewAssembler makes an assembler of so many packets at most, all of one protocol. mark is the
// name of the table that marks packets for tracing; its own steps are left out.
func NewAssembler(mark string, protocol uint8, limit int, names Names) *Assembler {
	return &Assembler{mark: mark, protocol: protocol, limit: limit, names: names}
}

// Add adds an event that was read now. Events of packets that it has not seen begin are
// passed over: another program may trace packets too.
func (a *Assembler) Add(e livetrace.Event, now time.Time) {
	a.events++
	if e.Table == a.mark {
		// Where another program traces a packet, the end of the chain is reported, too.
		if e.Kind == livetrace.ByRule && !e.EndsChain() && e.Packet != nil {
			a.begin(e, now)
		}
		return
	}
	p := a.find(e.ID)
	if p == nil {
		p = a.lookUpLooped(e)
	}
	if p != nil {
		p.id, p.last, p.lastEvent = e.ID, now, a.events
		p.add(e, a.names)
	}
}

// lookUpLooped finds the packet of an event with another number: a packet that the node sends
// to itself gets one as it comes in by the loopback interface.
func (a *Assembler) lookUpLooped(e livetrace.Event) *Packet {
	if e.Packet == nil || e.Packet.Input == 0 {
		return nil
	}
	i := slices.IndexFunc(a.open, func(p *Packet) bool {
		return p.Input == "" && p.Output != "" && p.Source == e.Packet.Source && e.Packet.Destination == p.heading()
	})
	if i < 0 {
		return nil
	}
	return a.open[i]
}

func (a *Assembler) begin(e livetrace.Event, now time.Time) {
	if a.begun == a.limit {
		return
	}
	if old := a.find(e.ID); old != nil {
		old.id, old.last = 0, time.Time{} // the kernel uses its number again
	}
	a.begun++
	p := &Packet{
		Number: a.begun, Time: now, last: now, lastEvent: a.events, id: e.ID, Fate: Passed, Steps: []Step{},
		Source: e.Packet.Source, Destination: e.Packet.Destination, Protocol: nft.ProtocolText(a.protocol),
	}
	if e.Packet.Input != 0 {
		p.Input = a.names.Interface(e.Packet.Input)
	}
	p.Service, p.Port = a.names.Service(a.protocol, p.Source, p.Destination)
	a.open = append(a.open, p)
}

func (a *Assembler) find(id uint32) *Packet {
	if i := slices.IndexFunc(a.open, func(p *Packet) bool { return p.id == id && !p.last.IsZero() }); i >= 0 {
		return a.open[i]
	}
	return nil
}

// Lost notes that events were lost: all packets on their way are incomplete.
func (a *Assembler) Lost() {
	for _, p := range a.open {
		p.Incomplete = true
	}
}

// Full says that no further packet can begin.
func (a *Assembler) Full() bool { return a.begun == a.limit }

// Ended returns the packets whose way has ended by then, in their order. All events of the time
// before must have been added.
func (a *Assembler) Ended(by time.Time) []*Packet {
	return a.remove(func(p *Packet) bool { return !by.Before(p.due()) })
}

// Overtaken returns the packets whose way has ended by now although more events are queued, in
// their order: many events of other packets have come since.
func (a *Assembler) Overtaken(now time.Time) []*Packet {
	return a.remove(func(p *Packet) bool {
		return !now.Before(p.due()) && a.events-p.lastEvent >= overtakers
	})
}

// Rest returns all packets on their way, in their order, as incomplete ones.
func (a *Assembler) Rest() []*Packet {
	a.Lost()
	return a.remove(func(*Packet) bool { return true })
}

func (a *Assembler) remove(ended func(*Packet) bool) []*Packet {
	var removed []*Packet
	a.open = slices.DeleteFunc(a.open, func(p *Packet) bool {
		if !ended(p) {
			return false
		}
		removed = append(removed, p)
		return true
	})
	return removed
}

// Due is when the next packet's way may end; the zero time if none is on its way.
func (a *Assembler) Due() time.Time {
	var due time.Time
	for _, p := range a.open {
		if at := p.due(); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due
}

// due is when the packet's way counts as ended, if no further event comes.
func (p *Packet) due() time.Time {
	if p.Fate == Other {
		return p.last.Add(QueuePeriod)
	}
	return p.last.Add(QuietPeriod)
}
