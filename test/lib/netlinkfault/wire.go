package netlinkfault

import (
	"cmp"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Injector lets faults come where its function says so. It is safe for concurrent use.
type Injector struct {
	mu     sync.Mutex
	decide func(Place) (Fault, bool)
	// endless hides the acknowledgements of the ends of transactions.
	endless bool
	// messages and datagrams count those that were sent.
	messages, datagrams int
}

// New makes an Injector. decide is called for each message, one at a time; the datagrams are
// counted from the last call of Decide on.
func New(decide func(Place) (Fault, bool)) *Injector { return &Injector{decide: decide} }

// None is for Decide: no faults.
func None(Place) (Fault, bool) { return Fault{}, false }

// Decide replaces the function, and counts again.
func (i *Injector) Decide(decide func(Place) (Fault, bool)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.decide, i.messages, i.datagrams = decide, 0, 0
}

// HideEnds makes the kernel answer like those before 6.10: it does not acknowledge the end of a
// transaction.
func (i *Injector) HideEnds() { i.endless = true }

// Wire makes the system calls of one socket.
func (i *Injector) Wire() *Wire { return &Wire{injector: i, buf: make([]byte, 1<<17)} }

// Wire is between one socket and the kernel.
type Wire struct {
	injector *Injector
	buf      []byte
	// queue is what the socket reads next, last the answer to the last datagram.
	queue, last []item
	// late is an answer that comes with the next one.
	late []item
	// rest is what a stuck dump has not yet said, and stuck that it has stopped.
	rest  []item
	stuck bool
}

// item is what one read returns: a datagram, or an error.
type item struct {
	datagram []byte
	errno    unix.Errno
	// sticks says that the dump stops here.
	sticks bool
}

// seq is the number of the datagram's first message.
func (i item) seq() uint32 {
	if i.errno != 0 {
		return 0
	}
	return message(i.datagram).seq()
}

// chosen is a fault of a message.
type chosen struct {
	Fault
	message int
}

// Send gives the datagram to the kernel, and takes the answers at once: the kernel has queued them
// when the system call returns.
func (w *Wire) Send(fd int, buffers [][]byte) error {
	w.injector.mu.Lock()
	defer w.injector.mu.Unlock()
	messages := split(slices.Concat(buffers...))
	faults := w.injector.choose(messages)
	for _, f := range faults {
		if f.Kind == Unsent {
			return f.Errno
		}
	}
	answer, err := w.ask(fd, messages, faults)
	if err != nil {
		return err
	}
	previous := w.last
	w.last = answer
	w.queue, w.late = append(w.queue, w.late...), nil
	for _, f := range faults {
		answer = w.spoil(f, messages, answer, previous)
	}
	w.queue = append(w.queue, answer...)
	return nil
}

// choose asks for the faults of the messages.
func (i *Injector) choose(messages []message) []chosen {
	var faults []chosen
	batch := messages[0].name() == Begin
	for at, m := range messages {
		p := Place{Number: i.messages, Datagram: i.datagrams, Message: m.name()}
		if batch && p.Message != Begin && p.Message != End {
			p.Position, p.Of = at-1, len(messages)-2
		}
		i.messages++
		if f, ok := i.decide(p); ok {
			faults = append(faults, chosen{f, at})
		}
	}
	i.datagrams++
	return faults
}

// ask sends the messages, without those that are to be refused, and returns the kernel's answers with
// their refusals.
func (w *Wire) ask(fd int, messages []message, faults []chosen) ([]item, error) {
	if w.stuck && messages[0].dump() {
		return []item{{datagram: refusal(messages[0], messages[0].seq(), unix.EBUSY, -1)}}, nil
	}
	refused := map[uint32]Fault{}
	sent := slices.Clone(messages)
	var forged []item
	for _, f := range slices.Backward(faults) {
		if f.Kind != Refuse && f.Kind != RefuseUnlocated && f.Kind != RefuseSilently {
			continue
		}
		m := messages[f.message]
		switch {
		case m.name() == Begin: // Then the kernel looks at nothing else.
			return []item{{datagram: refusal(m, m.seq(), f.Errno, -1)}}, nil
		case m.name() == End:
			sent = slices.Insert(sent, f.message, impossible(m.seq()))
			refused[m.seq()] = f.Fault
		case messages[0].name() == Begin:
			sent[f.message] = impossible(m.seq())
			refused[m.seq()] = f.Fault
		default:
			sent = slices.Delete(sent, f.message, f.message+1)
			forged = append(forged, item{datagram: refusal(m, m.seq(), f.Errno, -1)})
		}
	}
	slices.Reverse(forged)
	if len(sent) == 0 {
		return forged, nil
	}
	if err := w.send(fd, sent); err != nil {
		return nil, err
	}
	answer := w.answers(fd)
	for i := range answer {
		answer[i].datagram = reworded(answer[i].datagram, messages, refused)
	}
	if w.injector.endless && messages[0].name() == Begin {
		end := messages[len(messages)-1].seq()
		answer = slices.DeleteFunc(answer, func(i item) bool {
			errno, seq, ok := message(i.datagram).errno()
			return ok && errno == 0 && seq == end
		})
	}
	answer = append(answer, forged...)
	if len(forged) > 0 { // The kernel answers in the order of the requests.
		slices.SortStableFunc(answer, func(a, b item) int { return cmp.Compare(a.seq(), b.seq()) })
	}
	return answer, nil
}

func (w *Wire) send(fd int, messages []message) error {
	var b []byte
	for _, m := range messages {
		b = append(b, m...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	for {
		if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != unix.EINTR {
			return err
		}
	}
}

// answers is all that the kernel has queued.
func (w *Wire) answers(fd int) []item {
	var all []item
	for {
		n, err := unix.Read(fd, w.buf)
		switch errno, _ := err.(unix.Errno); {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			return all
		case err != nil:
			all = append(all, item{errno: errno})
		default:
			all = append(all, item{datagram: slices.Clone(w.buf[:n])})
		}
	}
}

// reworded gives the refusals of impossible messages the errno of their faults.
func reworded(datagram []byte, messages []message, refused map[uint32]Fault) []byte {
	if len(refused) == 0 {
		return datagram
	}
	var b []byte
	for _, m := range split(datagram) {
		errno, seq, isError := m.errno()
		fault, ours := refused[seq]
		if !isError || !ours || errno == 0 {
			b = append(b, m...)
			continue
		}
		at := slices.IndexFunc(messages, func(m message) bool { return m.seq() == seq })
		offset := -1
		if name := messages[at].name(); fault.Kind == Refuse && (name == "add element" || name == "delete element") {
			offset = messages[at].firstItem()
		}
		b = append(b, refusal(messages[at], seq, fault.Errno, offset)...)
	}
	return b
}

// spoil changes the answer as the fault says.
func (w *Wire) spoil(f chosen, messages []message, answer, previous []item) []item {
	seq := messages[f.message].seq()
	at := 0
	if n := len(answer); n > 0 {
		at = []int{0, n / 2, n - 1}[f.At]
	}
	switch f.Kind {
	case Unread:
		return slices.Insert(answer, at, item{errno: f.Errno})
	case Lost, RefuseSilently:
		return nil
	case Overrun:
		return []item{{errno: unix.ENOBUFS}}
	case Late:
		w.late = answer
		return nil
	case Stale:
		before := messages[0].seq() - 1
		stale := slices.DeleteFunc(slices.Clone(previous), func(i item) bool { return i.errno != 0 })
		return slices.Concat(stale, []item{{datagram: refusal(messages[0], before, unix.EPERM, -1)}}, answer)
	case Cut:
		if len(answer) > 0 {
			b := answer[at].datagram
			answer[at].datagram = b[:(len(b)-headerLen/2)&^3]
		}
	case Interrupted:
		for _, m := range split(answer[at].datagram) {
			m.setFlag(unix.NLM_F_DUMP_INTR)
		}
	case Ended:
		return append(answer[:at:at], item{datagram: done(seq, f.Errno)})
	case Stuck:
		if !w.stuck && len(answer) > at {
			w.rest = slices.Clone(answer[at:])
			return append(answer[:at:at], item{errno: unix.ENOBUFS, sticks: true})
		}
	}
	return answer
}

// Read returns the next answer.
func (w *Wire) Read(_ int, b []byte) (int, error) {
	w.injector.mu.Lock()
	defer w.injector.mu.Unlock()
	if len(w.queue) == 0 {
		return 0, unix.EAGAIN
	}
	next := w.queue[0]
	w.queue = w.queue[1:]
	switch {
	case next.sticks:
		w.stuck = true
	case w.stuck && next.errno == 0: // The kernel goes on with a dump when something is read.
		w.queue = append(w.queue, w.rest[0])
		w.rest = w.rest[1:]
		w.stuck = len(w.rest) > 0
	}
	if next.errno != 0 {
		return 0, next.errno
	}
	return copy(b, next.datagram), nil
}
