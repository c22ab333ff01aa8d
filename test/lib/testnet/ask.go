package testnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Outcome is how a question ended.
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

	// These are for TCP; an ordinary client does not see them:
	Reset    bool // refused by a reset, and not by ICMP
	Attempts int  // how often the SYN was sent
}

// Ask asks the server at `to` for its id, from a new socket of the namespace. With
// protocol ICMP it sends an echo request, whose answer has no ID and no peer; ports are 0
// then. An error means that the question had none of the outcomes: an established
// connection was reset, or ctx has ended, for example. If the namespace's own rules drop
// or reject a UDP or SCTP packet (EPERM), the outcome is refused if an ICMP error follows
// and timed out if none does.
func (ns *Namespace) Ask(ctx context.Context, proto string, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	return ns.AskFrom(ctx, proto, netip.AddrPort{}, to, timeout)
}

// AskFrom is Ask from a given source. With port 0 it takes a free port, and with the zero
// AddrPort the kernel also chooses the address.
func (ns *Namespace) AskFrom(ctx context.Context, proto string, from, to netip.AddrPort,
	timeout time.Duration) (Answer, error) {
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

// connect dials. Reads of the connection fail when the context ends.
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

// freshSource returns the source for a datagram. Where the question has no port, it
// takes one that no recent question had: otherwise conntrack would take the datagram for
// part of an earlier flow, which keeps its endpoint.
func (q *question) freshSource() string {
	if q.from.Port() != 0 {
		return q.source()
	}
	addr := q.from.Addr()
	switch {
	case addr.IsValid():
	case q.to.Addr().Is4():
		addr = netip.IPv4Unspecified()
	default:
		addr = netip.IPv6Unspecified()
	}
	return netip.AddrPortFrom(addr, q.ns.freshPort()).String()
}

// freshPort returns one of the dynamic ports (RFC 6335, section 6), which the
// namespace's last 16,383 questions did not have.
func (ns *Namespace) freshPort() uint16 {
	return uint16(49152 + ns.questions.Add(1)%16384)
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
	conn, release, err := q.connect("udp", q.freshSource(), q.to.String())
	for q.from.Port() == 0 && errors.Is(err, unix.EADDRINUSE) && q.ctx.Err() == nil {
		conn, release, err = q.connect("udp", q.freshSource(), q.to.String())
	}
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
		port = q.ns.freshPort()
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

// send writes one packet. It ignores EPERM, which a local rule causes if it drops and if
// it rejects: the next read shows which of the two it was.
func send(conn net.Conn, packet []byte) error {
	if _, err := conn.Write(packet); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}

// classify returns the outcome that an error of a socket stands for.
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

// interruptOnDone makes reads of a socket fail with os.ErrDeadlineExceeded when ctx ends.
// The returned function stops that.
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
