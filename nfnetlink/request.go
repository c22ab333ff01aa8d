package nfnetlink

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrUnanswered should not happen: the kernel has queued its answers when it has taken a datagram, or says that it
// had no room for them. It queues each further datagram of a dump when the one before is read.
var ErrUnanswered = errors.New("the kernel's answer is missing")

// Requester asks the kernel for objects, on a socket of its own. The caller holds the lock from a request until it
// no longer uses the answer.
type Requester struct {
	sync.Mutex
	Socket *Socket
	// Subsystem is the one that is asked, such as unix.NFNL_SUBSYS_NFTABLES.
	Subsystem uint16
	seq       uint32
	// request is memory for the next request.
	request Encoder
	// rest says that a part of the last answer may be queued still.
	rest bool
}

// Get sends one request and returns the attributes of its only answer, valid until the next request.
func (r *Requester) Get(kind uint16, family uint8, attributes []byte) (Attributes, error) {
	var reply Attributes
	err := r.Receive(kind, 0, family, attributes, func(m Message) error {
		reply = m.Attributes()
		return errNoMore
	})
	switch {
	case err == errNoMore:
		r.rest = false
		return reply, nil
	case err == nil:
		err = ErrUnanswered // only an acknowledgement
	}
	return nil, err
}

// errNoMore ends an answer after the message that a function was called for.
var errNoMore = errors.New("no message is left")

// Receive sends a request and visits each message of the answer. An error of visit ends it, and comes back as it
// is; the next request drops what is left of the answer. An error of the kernel is its errno.
func (r *Requester) Receive(kind, flags uint16, family uint8, attributes []byte, visit func(Message) error) error {
	kind |= r.Subsystem << 8
	err := r.receive(kind, flags, family, attributes, visit)
	if err == unix.EBUSY && flags&unix.NLM_F_DUMP != 0 {
		if err = r.endDump(); err == nil {
			err = r.receive(kind, flags, family, attributes, visit)
		}
	}
	return err
}

// endDump ends a dump that the kernel has begun on this socket and could not go on with, for want of memory. Until
// its end the kernel begins no other one (EBUSY). It goes on with it when any datagram is read, so endDump asks for
// one.
func (r *Requester) endDump() error {
	if err := r.receive(unix.NLMSG_NOOP, unix.NLM_F_ACK, unix.AF_UNSPEC, nil, func(Message) error {
		return nil
	}); err != nil {
		return fmt.Errorf("end an earlier dump: %w", err)
	}
	r.Socket.Drain()
	return nil
}

func (r *Requester) receive(kind, flags uint16, family uint8, attributes []byte, visit func(Message) error) error {
	if r.rest {
		r.Socket.Drain() // of answers that a failed visit left
	}
	r.rest = true
	r.seq++
	e := &r.request
	e.B = e.B[:0]
	at := e.BeginMessage(kind, flags, r.seq, family)
	e.B = append(e.B, attributes...)
	e.EndMessage(at)
	if err := r.Socket.Send(e.B); err != nil {
		return err
	}
	answered := false
	for {
		// The kernel queues the first datagram during the send, and each further one when the one before is read.
		b, err := r.Socket.Queued()
		switch {
		case err == io.EOF && answered && flags&unix.NLM_F_DUMP == 0:
			r.rest = false
			return nil
		case err == io.EOF:
			return ErrUnanswered
		case err != nil:
			return err
		}
		for m := range Messages(b) {
			if m.Seq != r.seq {
				continue
			}
			answered = true
			switch m.Kind {
			case unix.NLMSG_DONE:
				return m.Err()
			case unix.NLMSG_ERROR:
				if err := m.Err(); err != nil {
					return err
				}
			default:
				if err := visit(m); err != nil {
					return err
				}
			}
		}
	}
}
