package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// serveUDP answers each datagram with the server's id, the client's address and the
// datagram itself, so that a client knows which of its datagrams was answered.
func serveUDP(ctx context.Context, ns *testnet.Namespace, at netip.AddrPort, id string) (io.Closer, error) {
	conn, err := ns.ListenPacket(ctx, "udp", at.String())
	if err != nil {
		return nil, err
	}
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return // closed
			}
			// What cannot be sent is lost, as others may be.
			_, _ = conn.WriteTo(fmt.Appendf(nil, "%s %v %s", id, from, bytes.TrimSpace(buffer[:n])), from)
		}
	}()
	return conn, nil
}

// datagrams is a client's UDP socket, which keeps its port.
type datagrams struct {
	conn net.Conn
	last int // the last datagram's number
	// sent is when each datagram was sent. On a busy machine an answer may come after the
	// question has been given up.
	sent map[int]time.Time
}

func openUDP(ctx context.Context, ns *testnet.Namespace, source string, to netip.AddrPort) (*datagrams, error) {
	conn, err := ns.DialFrom(ctx, "udp", source, to.String())
	if err != nil {
		return nil, err
	}
	return &datagrams{conn: conn, sent: map[int]time.Time{}}, nil
}

// resendPeriod is how long a client waits before it sends again. A datagram that met the
// moment between two programs is lost; a busy machine answers late.
const resendPeriod = time.Second

// ask sends a question until an answer comes, most times at most, and each time waits
// for the period. first is when the first datagram was sent, or an earlier one that was
// answered only now: it has made the flow, which may stay with the pod that it got then.
// resent counts the others. Before each of them, more
// says whether to go on.
func (d *datagrams) ask(period time.Duration, most int,
	more func() bool) (a Answer, first time.Time, resent int, err error) {
	first = time.Now()
	tries := 0
	for try := range most {
		if try > 0 && !more() {
			break
		}
		d.last++
		d.sent[d.last] = time.Now()
		tries++
		if err := d.send(); err != nil {
			return Answer{}, first, try, err
		}
		a, of, err := d.read(time.Now().Add(period))
		switch {
		case err == nil && of.Before(first):
			return a, of, try, nil
		case err == nil:
			return a, first, try, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return Answer{}, first, try, err
		}
	}
	return Answer{Kind: Silent}, first, tries - 1, nil
}

// send sends the datagram with the last number. The rules may refuse it at once (EPERM);
// a read tells what became of it. An ICMP error about an earlier one takes the place of a
// send, so that there has to be another one.
func (d *datagrams) send() error {
	const most = 3
	var err error
	for range most {
		_, err = fmt.Fprintf(d.conn, "%d", d.last)
		if !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return err
}

// read waits for the answer to one of the datagrams, and returns when that one was sent.
func (d *datagrams) read(deadline time.Time) (a Answer, of time.Time, err error) {
	if err := d.conn.SetReadDeadline(deadline); err != nil {
		return a, of, err
	}
	buffer := make([]byte, 2048)
	for {
		n, err := d.conn.Read(buffer)
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH) ||
			errors.Is(err, unix.EACCES) {
			return Answer{Kind: Rejected}, time.Now(), nil
		}
		if err != nil {
			return a, of, err
		}
		number := 0
		words := strings.Fields(string(buffer[:n]))
		if len(words) != 3 {
			return a, of, fmt.Errorf("answer %q", buffer[:n])
		}
		if _, err := fmt.Sscan(words[2], &number); err != nil {
			return a, of, fmt.Errorf("answer %q: %w", buffer[:n], err)
		}
		of, ours := d.sent[number]
		if !ours {
			continue // answered before
		}
		delete(d.sent, number)
		peer, err := netip.ParseAddrPort(words[1])
		if err != nil {
			return a, of, err
		}
		local, err := netip.ParseAddrPort(d.conn.LocalAddr().String())
		if err != nil {
			return a, of, err
		}
		return Answer{Kind: Answered, Pod: words[0], Source: source(local.Addr(), peer.Addr())}, of, nil
	}
}

// source compares the client's address with the one that the server saw.
func source(local, seen netip.Addr) Source {
	if local.Unmap() == seen.Unmap() {
		return Kept
	}
	return Masqueraded
}
