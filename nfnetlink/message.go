package nfnetlink

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// Message is a message that was received.
type Message struct {
	Kind, Flags uint16
	Seq         uint32
	// Body is everything after the header.
	Body []byte
}

// Attributes is the bytes after the nfgenmsg.
func (m Message) Attributes() Attributes {
	if len(m.Body) < nfgenmsgLen {
		return nil
	}
	return m.Body[nfgenmsgLen:]
}

// Messages yields the messages of a datagram.
func Messages(b []byte) func(yield func(Message) bool) {
	return func(yield func(Message) bool) {
		for m, rest, ok := nextMessage(b); ok && yield(m); m, rest, ok = nextMessage(rest) {
		}
	}
}

// nextMessage splits the first message of a datagram from the rest. ok is false where there is none, or only a part of
// it.
func nextMessage(b []byte) (m Message, rest []byte, ok bool) {
	if len(b) < HeaderLen {
		return m, nil, false
	}
	size := int(binary.NativeEndian.Uint32(b))
	if size < HeaderLen || size > len(b) {
		return m, nil, false
	}
	m = Message{
		Kind:  binary.NativeEndian.Uint16(b[4:]),
		Flags: binary.NativeEndian.Uint16(b[6:]),
		Seq:   binary.NativeEndian.Uint32(b[8:]),
		Body:  b[HeaderLen:size],
	}
	return m, b[min(Align(size), len(b)):], true
}

// Whole says that a datagram ends where its last message ends.
func Whole(b []byte) bool {
	for ok := true; len(b) > 0; {
		if _, b, ok = nextMessage(b); !ok {
			return false
		}
	}
	return true
}

// AskAcknowledgement has the last of the messages ask the kernel for an acknowledgement.
func AskAcknowledgement(messages []byte) {
	for {
		size := Align(int(binary.NativeEndian.Uint32(messages)))
		if size >= len(messages) {
			break
		}
		messages = messages[size:]
	}
	flags := binary.NativeEndian.Uint16(messages[6:])
	binary.NativeEndian.PutUint16(messages[6:], flags|unix.NLM_F_ACK)
}

// Answer is what the kernel says about one message. Errno 0 is success.
type Answer struct {
	Seq   uint32
	Errno syscall.Errno
	// Offset is where the error is, in bytes from the message's start; -1 if unknown.
	Offset int
}

// Answer reads an NLMSG_ERROR (uapi/linux/netlink.h). It starts with a struct nlmsgerr, which has the header of our
// message and, unless capped, the rest of it. Attributes follow if a flag says so.
func (m Message) Answer() (Answer, bool) {
	const errorLen = 4
	if m.Kind != unix.NLMSG_ERROR || len(m.Body) < errorLen+HeaderLen {
		return Answer{}, false
	}
	original := m.Body[errorLen:]
	a := Answer{Seq: binary.NativeEndian.Uint32(original[8:]), Errno: m.errno(), Offset: -1}
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return a, true
	}
	skip := HeaderLen
	if m.Flags&unix.NLM_F_CAPPED == 0 && a.Errno != 0 {
		skip = Align(int(binary.NativeEndian.Uint32(original)))
	}
	if skip > len(original) {
		return a, true
	}
	if v := Attributes(original[skip:]).Get(unix.NLMSGERR_ATTR_OFFS); len(v) == 4 {
		a.Offset = int(binary.NativeEndian.Uint32(v))
	}
	return a, true
}

// Err is the error in an answer or at the end of a dump; nil if there is none, and for other messages.
func (m Message) Err() error {
	if m.Kind != unix.NLMSG_ERROR && m.Kind != unix.NLMSG_DONE {
		return nil
	}
	if len(m.Body) < 4 {
		return ErrMalformed
	}
	if n := m.errno(); n != 0 {
		return n
	}
	return nil
}

func (m Message) errno() syscall.Errno {
	return syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Body)))
}
