package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// requester asks the kernel for objects, on a socket of its own. The lock is held from a
// request to the end of its answer.
type requester struct {
	sync.Mutex
	socket *socket
	seq    uint32
	// rest says that a part of the last answer may be queued still.
	rest bool
}

// request sends one request and returns its only answer, valid until the next
// request.
func (r *requester) request(kind uint16, family nft.Family, fill func(*encoder)) ([]byte, error) {
	var reply []byte
	err := r.receive(kind, 0, family, fill, func(m message) error {
		reply = m.attrs()
		return errNoMore
	})
	switch {
	case err == errNoMore:
		r.rest = false
		return reply, nil
	case err == nil:
		err = errUnanswered // only an acknowledgement
	}
	return nil, err
}

// errNoMore ends an answer after the message that a function was called for.
var errNoMore = errors.New("no message is left")

// receive sends a request and visits each message of the answer.
func (r *requester) receive(kind, flags uint16, family nft.Family, fill func(*encoder), visit func(message) error) error {
	err := r.receiveOnce(kind, flags, family, fill, visit)
	if err == unix.EBUSY && flags&unix.NLM_F_DUMP != 0 {
		if err = r.endDump(); err == nil {
			err = r.receiveOnce(kind, flags, family, fill, visit)
		}
	}
	return err
}

// endDump ends a dump that the kernel has begun on this socket and could not go on with, for want
// of memory. Until its end the kernel begins no other one (EBUSY). It goes on with it
// when any datagram is read, so endDump asks for one.
func (r *requester) endDump() error {
	if err := r.receiveOnce(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil, func(message) error { return nil }); err != nil {
		return fmt.Errorf("end an earlier dump: %w", err)
	}
	r.socket.drain()
	return nil
}

func (r *requester) receiveOnce(kind, flags uint16, family nft.Family, fill func(*encoder), visit func(message) error) error {
	if r.rest {
		r.socket.drain() // of answers that a failed visit left
	}
	r.rest = true
	r.seq++
	var e encoder
	at := e.beginMessage(kind, flags, r.seq, family)
	if fill != nil {
		fill(&e)
	}
	e.endMessage(at)
	if err := r.socket.send(e.b); err != nil {
		return err
	}
	answered := false
	for {
		// The kernel queues the first datagram during the send, and each further one when
		// the one before is read.
		b, err := r.socket.queued()
		switch {
		case err == io.EOF && answered && flags&unix.NLM_F_DUMP == 0:
			r.rest = false
			return nil
		case err == io.EOF:
			return errUnanswered
		case err != nil:
			return err
		}
		for m := range messages(b) {
			if m.seq != r.seq {
				continue
			}
			answered = true
			switch m.kind {
			case unix.NLMSG_DONE:
				return doneError(m)
			case unix.NLMSG_ERROR:
				if a, _ := parseAnswer(m); a.errno != 0 {
					return a.errno
				}
			default:
				if err := visit(m); err != nil {
					return err
				}
			}
		}
	}
}

// doneError is the error with which a dump ended.
func doneError(m message) error {
	if len(m.body) >= 4 {
		if n := -int32(binary.NativeEndian.Uint32(m.body)); n > 0 {
			return syscall.Errno(n)
		}
	}
	return nil
}
