package netlinkfault

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Kind is a way in which the kernel's answer goes wrong.
type Kind uint8

const (
	// Refuse: the message is refused with the errno. A transaction is aborted.
	Refuse Kind = iota + 1
	// RefuseUnlocated is Refuse by a kernel that does not say which attribute is at fault.
	RefuseUnlocated
	// RefuseSilently is Refuse without any answer.
	RefuseSilently
	// Unsent: the kernel does not take the datagram.
	Unsent
	// Unread: reading the answer fails once, and then succeeds.
	Unread
	// Lost: the kernel has done what was asked, and there is no answer.
	Lost
	// Overrun is Lost, and the kernel says so (ENOBUFS).
	Overrun
	// Late: the answer comes before that of the socket's next request.
	Late
	// Stale: the socket's last answer, and an error for the message before, come first.
	Stale
	// Cut: a datagram of the answer is shorter than its last message says.
	Cut
	// Interrupted: a datagram of a dump says that the dump was interrupted.
	Interrupted
	// Ended: a dump ends early, with the errno.
	Ended
	// Stuck: the kernel has no memory to go on with a dump (ENOBUFS). Until the dump's end, which
	// comes when the socket reads other answers, it refuses to begin another one (EBUSY).
	Stuck
)

func (k Kind) String() string {
	return [...]string{
		"", "refused", "refused, not located", "refused without answer", "not sent", "not read", "answer lost",
		"answer lost, ENOBUFS",
		"answer late", "stale answer first", "answer cut short", "dump interrupted", "dump ended", "dump stuck",
	}[k]
}

// Fault is one fault.
type Fault struct {
	Kind Kind
	// Errno is that of Refuse, RefuseUnlocated, RefuseSilently, Unsent, Unread and Ended.
	Errno unix.Errno
	// At says which datagram of a dump's answer has the fault: 0 the first, 1 the middle one, 2 the
	// last.
	At int
}

func (f Fault) String() string {
	text := f.Kind.String()
	if f.Errno != 0 {
		text += " " + unix.ErrnoName(f.Errno)
	}
	return text + [...]string{"", " in the middle", " at the end"}[f.At]
}

// Place is where a fault can come: a message that the proxy sends.
type Place struct {
	// Number counts the messages on all of the Injector's sockets.
	Number int
	// Datagram counts the datagrams.
	Datagram int
	// Message is the kind of message, such as "add element" or "dump rules".
	Message string
	// Position is the message's index among the messages of its transaction, and Of is how many these
	// are, without those that begin and end it. Both are 0 in other messages.
	Position, Of int
}

// Dump says that the answer is a dump.
func (p Place) Dump() bool { return len(p.Message) > 5 && p.Message[:5] == "dump " }

// Transaction says that the message belongs to a transaction.
func (p Place) Transaction() bool { return p.Of > 0 || p.Message == Begin || p.Message == End }

// Elements says that the message has elements of a set.
func (p Place) Elements() bool { return p.Message == "add element" || p.Message == "delete element" }

func (p Place) String() string {
	if p.Of > 0 {
		return fmt.Sprintf("%s (message %d of %d)", p.Message, p.Position+1, p.Of)
	}
	return p.Message
}
