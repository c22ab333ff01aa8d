package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// value is what a field of a message holds: bytes, or a number for fields of type varint.
type value struct {
	bytes  []byte
	number uint64
}

func (v value) text() string { return string(v.bytes) }
func (v value) bool() bool   { return v.number != 0 }

// fields calls field for each field of a message that holds bytes or a varint, in the order of the
// message. Kubernetes has no fields of other types in the objects that the package reads; fields skips those.
func fields(message []byte, field func(protowire.Number, value) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var v value
		switch kind {
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			v.number, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if kind != protowire.BytesType && kind != protowire.VarintType {
			continue
		}
		if err := field(number, v); err != nil {
			return err
		}
	}
	return nil
}

// stream reads a message whose bytes have not all arrived.
type stream struct {
	in *bufio.Reader
	// left is how many bytes of the message are still to come.
	left uint64
}

// ReadByte reads a byte of the message.
func (s *stream) ReadByte() (byte, error) {
	if s.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	b, err := s.in.ReadByte()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		s.left--
	}
	return b, err
}

// read fills b, which is not longer than the rest of the message, with its next bytes.
func (s *stream) read(b []byte) error {
	_, err := io.ReadFull(s.in, b)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	s.left -= uint64(len(b))
	return err
}

// varint reads a number of at most 64 bits (Protocol Buffers, "Encoding", Base 128 Varints).
func (s *stream) varint() (uint64, error) {
	var number uint64
	for shift := 0; shift < 64; shift += 7 {
		b, err := s.ReadByte()
		if err != nil {
			return 0, err
		}
		number |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return number, nil
		}
	}
	return 0, errors.New("a number of more than 64 bits")
}

// next returns the number of the next field, and the message that it holds, which the caller reads
// before it calls next again. It returns io.EOF at the end of the message. It skips fields of other types than bytes.
func (s *stream) next() (protowire.Number, *stream, error) {
	for s.left > 0 {
		tag, err := s.varint()
		if err != nil {
			return 0, nil, err
		}
		number, kind := protowire.DecodeTag(tag)
		switch kind {
		case protowire.VarintType:
			_, err = s.varint()
		case protowire.BytesType:
			var length uint64
			if length, err = s.varint(); err == nil && length > s.left {
				err = fmt.Errorf("field %d has %d bytes, and its message only %d", number, length, s.left)
			}
			if err == nil {
				s.left -= length
				return number, &stream{in: s.in, left: length}, nil
			}
		default:
			err = fmt.Errorf("field %d has the type %d, which objects of Kubernetes do not use", number, kind)
		}
		if err != nil {
			return 0, nil, err
		}
	}
	return 0, nil, io.EOF
}
