package testnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Outcome is what became of a question.
type Outcome string

// The outcomes of Ask.
const (
	Answered    Outcome = "answered"
	Refused     Outcome = "refused"     // TCP reset or ICMP port unreachable
	TimedOut    Outcome = "timed out"   // neither answer nor error in time
	Unreachable Outcome = "unreachable" // no route, or ICMP unreachable for another reason than the port
)

// Answer is the outcome of Ask.
type Answer struct {
	Outcome Outcome
	ID      string         // the server's id; only if answered
	Peer    netip.AddrPort // the client as the server saw it; only if answered
	Local   netip.AddrPort // the client as it saw itself, unless refused by TCP; Peer differs if masqueraded
	Took    time.Duration  // from just before the first packet to the outcome

	// What a client of TCP does not get to know, unless it answered:
	Reset    bool // refused by a reset, and not by ICMP
	Attempts int  // how often the SYN was sent
}

// Ask asks the server at `to` who it is, from a new socket of the namespace.
// With protocol ICMP it is an echo request, whose answer has no ID and no peer;
// ports are 0 then. The error is for what is none of the outcomes, such as a connection that is
// reset after it was made, or the end of ctx. A UDP or SCTP packet that the
// namespace's own rules drop or reject (EPERM) is judged by the ICMP error that
// follows: refused if there is one, timed out if not.
func (ns *Namespace) Ask(ctx context.Context, proto string, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	return ns.AskFrom(ctx, proto, netip.AddrPort{}, to, timeout)
}

// AskFrom is Ask from a given source: port 0 is any, the zero AddrPort leaves
// the address to the kernel too.
func (ns *Namespace) AskFrom(ctx context.Context, proto string, from, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	q := question{ctx: asking, ns: ns, from: from, to: to, start: time.Now()}
	var line string
	var err error
	switch proto {
	case TCP:
		line, err = q.tcp()
	case UDP:
		line, err = q.udp()
	case SCTP:
		line, err = q.sctp()
	case ICMP:
		err = q.echo()
	default:
		return Answer{}, fmt.Errorf("protocol %q is not one of %s, %s, %s, %s", proto, TCP, UDP, SCTP, ICMP)
	}
	answer := Answer{Local: q.local, Took: time.Since(q.start), Reset: q.reset, Attempts: q.attempts}
	if err == nil {
		answer.Outcome = Answered
		if proto != ICMP {
			answer.ID, answer.Peer, err = ParseAnswer(line)
		}
	} else if outcome, known := classify(err); known && ctx.Err() == nil {
		answer.Outcome, err = outcome, nil
	}
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s %v from %s: %w", proto, to, ns, err)
	}
	return answer, nil
}

// question is an Ask under way.
type question struct {
	ctx      context.Context
	ns       *Namespace
	from, to netip.AddrPort
	start    time.Time
	local    netip.AddrPort
	// reset and attempts are those of Answer.
	reset    bool
	attempts int
}

// connect dials and makes the reading end with the context.
func (q *question) connect(network, source, address string) (net.Conn, func(), error) {
	var second socketCopy
	conn, err := q.ns.dial(q.ctx, network, source, address, func(socket syscall.RawConn) error {
		if network == "tcp" {
			if err := second.of(socket, q.to.Addr()); err != nil {
				return err
			}
		}
		q.start = time.Now()
		return nil
	})
	if network == "tcp" {
		q.reset, q.attempts = second.close(err)
	}
	if err != nil {
		return nil, nil, err
	}
	q.local = addrPort(conn.LocalAddr())
	release := interruptOnDone(q.ctx, conn)
	return conn, func() { release(); _ = conn.Close() }, nil
}

func (q *question) source() string {
	if !q.from.IsValid() {
		return ""
	}
	return q.from.String()
}

func (q *question) tcp() (string, error) {
	conn, release, err := q.connect("tcp", q.source(), q.to.String())
	if err != nil {
		return "", err
	}
	defer release()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return line, err
}

func (q *question) udp() (string, error) {
	conn, release, err := q.connect("udp", q.source(), q.to.String())
	if err != nil {
		return "", err
	}
	defer release()
	if err := send(conn, []byte("who?\n")); err != nil {
		return "", err
	}
	buf := make([]byte, 2048)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

func (q *question) sctp() (string, error) {
	source, port := "", q.from.Port()
	if q.from.IsValid() {
		source = q.from.Addr().String()
	}
	if port == 0 {
		port = uint16(49152 + rand.IntN(16384)) // RFC 6335 section 6: dynamic ports
	}
	conn, release, err := q.connect(sctpNetwork(q.to.Addr()), source, q.to.Addr().String())
	if err != nil {
		return "", err
	}
	defer release()
	q.local = netip.AddrPortFrom(q.local.Addr(), port)
	init := newInit(port, q.to.Port())
	own := func(packet []byte) bool { return len(packet) >= 4 && [4]byte(packet) == [4]byte(init) } // the ports
	socket, err := raw(conn, q.to.Addr(), own)
	if err != nil {
		return "", err
	}
	if err := socket.send(init); err != nil {
		return "", err
	}
	return awaitCookie(socket, port, q.to.Port())
}

// send writes one packet. A local rule's verdict shows as EPERM here whether it
// drops or rejects; reading then tells them apart.
func send(conn net.Conn, packet []byte) error {
	if _, err := conn.Write(packet); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}

// classify tells which outcome an error of a socket stands for.
func classify(err error) (outcome Outcome, known bool) {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	var timeout net.Error
	switch {
	case is(unix.ECONNREFUSED):
		return Refused, true
	case is(unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES, unix.ENOPROTOOPT, unix.EPROTO):
		return Unreachable, true
	case is(os.ErrDeadlineExceeded, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return TimedOut, true
	}
	return "", false
}

// interruptOnDone makes reads of a socket fail with os.ErrDeadlineExceeded once
// ctx has ended. The function returned undoes it.
func interruptOnDone(ctx context.Context, socket interface{ SetReadDeadline(time.Time) error }) func() {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = socket.SetReadDeadline(time.Unix(1, 0)) // fails on a closed socket, which does not block either
	})
	return func() {
		if !stop() {
			<-interrupted
			_ = socket.SetReadDeadline(time.Time{})
		}
	}
}
