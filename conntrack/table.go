package conntrack

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Config says where to work.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in. 0 is the
	// one of the calling thread. It can be closed after Open.
	NetNS int
}

// Table is the connection tracking table of one network namespace, of both
// families. Flows and Delete may run side by side, also one inside the other,
// but two calls of the same one may not.
type Table struct {
	// A dump keeps its socket busy to the end, so deletions have their own.
	dumps, deletes *netlink.Conn
}

const (
	// readBuffer is the most that the kernel puts into one datagram of a dump.
	readBuffer = 32 << 10
	// deleteBatch is how many deletions go out in one datagram. Each is
	// answered by one of its own, of up to about 1 KiB of kernel memory.
	deleteBatch = 128
	// ackMemory leaves room for the answers, whatever net.core.rmem_default is.
	ackMemory = 1 << 20
)

// Open opens the sockets. It needs CAP_NET_ADMIN in the namespace only once
// flows are read or deleted, and only then finds that conntrack is missing.
func Open(config Config) (*Table, error) {
	var t Table
	var err error
	dial := netlink.Config{NetNS: config.NetNS, MessageBufferSize: readBuffer}
	if t.dumps, err = netlink.Dial(unix.NETLINK_NETFILTER, &dial); err != nil {
		return nil, fmt.Errorf("open conntrack socket: %w", err)
	}
	if t.deletes, err = netlink.Dial(unix.NETLINK_NETFILTER, &dial); err != nil {
		return nil, errors.Join(fmt.Errorf("open conntrack socket: %w", err), t.dumps.Close())
	}
	// Best effort: without CAP_NET_ADMIN it gets what rmem_max allows, and
	// deletions fail with EPERM anyway.
	_ = t.deletes.SetReadBuffer(ackMemory)
	return &t, nil
}

// Close closes the sockets.
func (t *Table) Close() error { return errors.Join(t.dumps.Close(), t.deletes.Close()) }

// ErrInterrupted says that a dump may have missed entries, since the table
// changed shape under it.
var ErrInterrupted = errors.New("dump interrupted")

// Flows calls yield for each flow that the filter selects, as the kernel walks
// its table: entries that come or go meanwhile may be missed. Memory does not
// grow with the table. An error of yield ends the call and is returned as it
// is. Kernel errors match unix.EPERM (no CAP_NET_ADMIN) or unix.EINVAL (no
// nf_conntrack_netlink in the kernel).
func (t *Table) Flows(ctx context.Context, filter Filter, yield func(Flow) error) error {
	return t.dump(ctx, dumpRequest(filter), filter, yield)
}

func (t *Table) dump(ctx context.Context, request netlink.Message, filter Filter, yield func(Flow) error) error {
	if _, err := t.dumps.Send(request); err != nil {
		return fmt.Errorf("dump conntrack table: %w", err)
	}
	interrupted := false
	// Left early, the iterator reads the rest of the dump and drops it.
	for m, err := range t.dumps.ReceiveIter() {
		if err != nil {
			return fmt.Errorf("dump conntrack table: %w", explain(err))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
		f, err := parseFlow(m.Data)
		if err != nil {
			return fmt.Errorf("dump conntrack table: %w", err)
		}
		if !filter.Selects(&f) {
			continue
		}
		if err := yield(f); err != nil {
			return err
		}
	}
	if interrupted {
		return fmt.Errorf("dump conntrack table: %w", ErrInterrupted)
	}
	return nil
}

// explain adds what the kernel's bare number means here.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (is the kernel module nf_conntrack_netlink missing?)", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (needs CAP_NET_ADMIN)", err)
	}
	return err
}

// Delete removes those of the flows that are still there and returns how many
// these were. An entry that took a flow's place with the same tuple stays. Any
// error but that a flow is gone ends the call, and flows may be left.
func (t *Table) Delete(ctx context.Context, flows []Flow) (n int, err error) {
	for len(flows) > 0 {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		batch := flows[:min(len(flows), deleteBatch)]
		flows = flows[len(batch):]
		removed, err := t.deleteBatch(batch)
		n += removed
		if err != nil {
			return n, fmt.Errorf("delete conntrack entries: %w", explain(err))
		}
	}
	return n, nil
}

func (t *Table) deleteBatch(flows []Flow) (n int, err error) {
	requests := make([]netlink.Message, len(flows))
	for i := range flows {
		requests[i] = deleteRequest(&flows[i])
	}
	if requests, err = t.deletes.SendMessages(requests); err != nil {
		return 0, err
	}
	var failed error
	for answered := 0; answered < len(requests); {
		sequence, err := t.answer()
		if sequence == 0 {
			return n, err // of the socket: further answers may be lost
		}
		if sequence-requests[0].Header.Sequence >= uint32(len(requests)) {
			continue // left behind by a call that ended like that
		}
		answered++
		switch {
		case err == nil:
			n++
		case errors.Is(err, unix.ENOENT): // gone by itself
		case failed == nil:
			failed = err
		}
	}
	return n, failed
}

// answer reads one acknowledgement and returns the sequence number of what it
// answers, which is never 0, unless reading failed.
func (t *Table) answer() (sequence uint32, err error) {
	messages, err := t.deletes.Receive()
	var op *netlink.OpError
	switch {
	case errors.As(err, &op):
		return op.Sequence, err
	case err != nil:
		return 0, err
	case len(messages) != 1:
		return 0, fmt.Errorf("%d messages where one acknowledgement was due", len(messages))
	}
	return messages[0].Header.Sequence, nil
}
