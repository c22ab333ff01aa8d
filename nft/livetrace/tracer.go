package livetrace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

// Config says what to trace.
type Config struct {
	Flow Flow
	// Packets is how many packets may be marked in a burst, 1 or more. After that ten a second
	// are marked.
	Packets int
	// Lifetime is how long packets are marked, in whole seconds, one at least.
	Lifetime time.Duration
}

// The errors of Receive that a caller goes on after.
var (
	// ErrLost says that the kernel had more events than the socket had room for.
	ErrLost = errors.New("events were lost: they came faster than they were read")
	// ErrDeadline says that no event came in time.
	ErrDeadline = errors.New("no event in time")
)

const (
	// readBuffer is the size of the socket's buffer, in bytes. An event takes some 300, and with
	// the kernel's own share of memory about 1 kB. A packet has some twenty.
	readBuffer = 4 << 20
)

// Tracer traces one flow. It is not safe for concurrent use.
type Tracer struct {
	config Config
	name   string
	// conn owns the table. events receives what the kernel reports.
	conn    *nftables.Conn
	events  *netlink.Conn
	raw     syscall.RawConn
	buf     []byte
	pending []Event
	marking bool
}

// Start begins to trace in the network namespace of the calling thread. It needs CAP_NET_ADMIN there.
func Start(c Config) (*Tracer, error) {
	t := &Tracer{config: c, name: tableName(time.Now().Add(c.Lifetime))}
	if err := t.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("trace packets: %w", explain(err)), t.Close())
	}
	return t, nil
}

func (t *Tracer) open() error {
	var err error
	// The socket for events comes first: none is lost then.
	t.events, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTRACE - 1)})
	if err != nil {
		return fmt.Errorf("listen to traces: %w", err)
	}
	if t.raw, err = t.events.SyscallConn(); err != nil {
		return fmt.Errorf("listen to traces: %w", err)
	}
	const longest = 64 << 10
	t.buf = make([]byte, longest)
	// An error does no harm: without CAP_NET_ADMIN over the first user namespace the buffer is
	// as large as net.core.rmem_max allows.
	_ = t.events.SetReadBuffer(readBuffer)
	if t.conn, err = nftables.New(nftables.AsLasting()); err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	if _, err := removeLeftOvers(t.conn); err != nil {
		return err
	}
	err = t.addTable(nftables.TableFlagOwner)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) { // a kernel that does not know the flag
		err = t.addTable(0)
	}
	if err != nil {
		return fmt.Errorf("make table %s: %w", t.name, err)
	}
	t.marking = true
	return nil
}

// explain adds what helps against an error.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (needs CAP_NET_ADMIN in the network namespace)", err)
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w (does the kernel lack nft_limit or nft_ct?)", err)
	}
	return err
}

// Table is the name of the table that marks packets. Its events begin a packet's trace.
func (t *Tracer) Table() string { return t.name }

// Receive returns the next event. Where none is queued, it waits until the deadline or the end
// of the context, and returns ErrDeadline. It returns what is queued in any case, so after
// ErrDeadline all events of the time before the deadline have been returned. Errors that match
// ErrLost or ErrDeadline are no reason to end.
func (t *Tracer) Receive(ctx context.Context, deadline time.Time) (Event, error) {
	for len(t.pending) == 0 {
		n, err := t.readQueued()
		if errors.Is(err, unix.EAGAIN) {
			if ctx.Err() != nil || !time.Now().Before(deadline) {
				return Event{}, ErrDeadline
			}
			if err := t.awaitDatagram(ctx, deadline); err != nil {
				return Event{}, fmt.Errorf("receive traces: %w", err)
			}
			continue
		}
		if errors.Is(err, unix.ENOBUFS) {
			return Event{}, ErrLost
		}
		if err == nil {
			err = t.keepEvents(t.buf[:n])
		}
		if err != nil {
			return Event{}, fmt.Errorf("receive traces: %w", err)
		}
	}
	e := t.pending[0]
	t.pending = t.pending[1:]
	return e, nil
}

// readQueued reads a datagram that is queued; EAGAIN says that there is none.
func (t *Tracer) readQueued() (n int, err error) {
	controlErr := t.raw.Control(func(fd uintptr) {
		for {
			if n, _, err = unix.Recvfrom(int(fd), t.buf, unix.MSG_DONTWAIT); err != unix.EINTR {
				return
			}
		}
	})
	return n, errors.Join(controlErr, os.NewSyscallError("recvfrom", err))
}

// awaitDatagram waits until a datagram is queued, or until the deadline or the end of the
// context.
func (t *Tracer) awaitDatagram(ctx context.Context, deadline time.Time) error {
	if err := t.events.SetReadDeadline(deadline); err != nil {
		return err
	}
	// Where the context has ended, the function runs at once.
	stop := context.AfterFunc(ctx, func() { _ = t.events.SetReadDeadline(time.Unix(1, 0)) }) // the socket is open
	defer stop()
	err := t.raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), nil, unix.MSG_DONTWAIT|unix.MSG_PEEK)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// keepEvents keeps the events in a datagram for Receive.
func (t *Tracer) keepEvents(datagram []byte) error {
	if !nfnetlink.Whole(datagram) {
		return nfnetlink.ErrTruncated
	}
	for m := range nfnetlink.Messages(datagram) {
		e, ok, err := parseEvent(m)
		if err != nil {
			return err
		}
		if ok {
			t.pending = append(t.pending, e)
		}
	}
	return nil
}

// StopMarking removes the table, so that no further packet is traced. Events of packets on
// their way can still come.
func (t *Tracer) StopMarking() error {
	if !t.marking {
		return nil
	}
	t.marking = false
	t.conn.DelTable(&nftables.Table{Family: nftables.TableFamily(t.config.Flow.Family()), Name: t.name})
	if err := t.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove table %s: %w", t.name, err)
	}
	return nil
}

// Close ends the trace and removes what it made.
func (t *Tracer) Close() error {
	err := t.StopMarking()
	if t.conn != nil {
		err = errors.Join(err, t.conn.CloseLasting())
	}
	if t.events != nil {
		err = errors.Join(err, t.events.Close())
	}
	return err
}
