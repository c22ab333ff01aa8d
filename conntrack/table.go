package conntrack

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"
)

// Config says where to work.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in. 0 is the
	// one of the calling thread, which all threads should be in: a socket may
	// have to be opened again. It can be closed after Open.
	NetNS int
}

// Table is the connection tracking table of one network namespace, of both
// families. Flows, Delete and Count may run side by side, also one inside the
// other, but two calls of the same one may not.
type Table struct {
	// A dump keeps its socket busy to the end, so the others have their own.
	dumps, deletes, counts *socket
	// netns is where, our own descriptor; 0 is the calling thread's namespace.
	netns int
	// broken says that a dump was not read to its end. The kernel begins no
	// other on the same socket (EBUSY), and may never say more about that one.
	broken bool
}

const (
	// deleteBatch is how many deletions go out in one datagram. Only the last
	// is acknowledged, but each may fail, which is answered by a datagram of up
	// to about 1 KiB of kernel memory.
	deleteBatch = 256
	// ackMemory leaves room for the answers, whatever net.core.rmem_default is.
	ackMemory = 1 << 20
)

// Open opens the sockets. It needs CAP_NET_ADMIN in the namespace only once
// they are used, and only then finds that conntrack is missing.
func Open(config Config) (*Table, error) {
	var t Table
	if config.NetNS != 0 {
		var err error
		if t.netns, err = unix.FcntlInt(uintptr(config.NetNS), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return nil, fmt.Errorf("open conntrack socket: network namespace: %w", err)
		}
	}
	for _, s := range []**socket{&t.dumps, &t.deletes, &t.counts} {
		var err error
		if *s, err = dial(t.netns); err != nil {
			return nil, errors.Join(fmt.Errorf("open conntrack socket: %w", err), t.Close())
		}
	}
	// Best effort: without CAP_NET_ADMIN it gets what rmem_max allows, and
	// deletions fail with EPERM anyway.
	_ = t.deletes.conn.SetReadBuffer(ackMemory)
	return &t, nil
}

// Close closes the sockets.
func (t *Table) Close() error {
	var failed error
	for _, s := range []*socket{t.dumps, t.deletes, t.counts} {
		if s != nil {
			failed = errors.Join(failed, s.conn.Close())
		}
	}
	if t.netns != 0 {
		failed = errors.Join(failed, unix.Close(t.netns))
	}
	return failed
}

// ErrInterrupted says that a dump may have missed entries, since the table
// changed shape under it.
var ErrInterrupted = errors.New("dump interrupted")

// Flows calls yield for each flow that the filter selects, as the kernel walks
// its table: entries that come or go meanwhile may be missed. Memory does not
// grow with the table. An error of yield ends the call and is returned as it
// is. Kernel errors match unix.EPERM (no CAP_NET_ADMIN) or unix.EINVAL (no
// nf_conntrack_netlink in the kernel).
func (t *Table) Flows(ctx context.Context, filter Filter, yield func(Flow) error) error {
	for _, request := range dumpRequests(filter) {
		if err := t.dump(ctx, request, filter, yield); err != nil {
			return err
		}
	}
	return nil
}

func (t *Table) dump(ctx context.Context, request netlink.Message, filter Filter, yield func(Flow) error) error {
	if err := t.mend(); err != nil {
		return fmt.Errorf("dump conntrack table: %w", err)
	}
	request, err := t.dumps.conn.Send(request)
	if err != nil {
		return fmt.Errorf("dump conntrack table: %w", err)
	}
	d := dumping{sequence: request.Header.Sequence, filter: filter, yield: yield}
	for !d.done {
		if d.failed == nil {
			d.failed = ctx.Err()
		}
		for m, err := range t.dumps.receive() {
			if err == nil {
				err = d.take(m)
			}
			if err != nil {
				t.broken = !d.done
				return fmt.Errorf("dump conntrack table: %w", explain(err))
			}
		}
	}
	if d.failed == nil && d.interrupted {
		return fmt.Errorf("dump conntrack table: %w", ErrInterrupted)
	}
	return d.failed
}

// mend opens the socket for dumps again if it is of no more use.
func (t *Table) mend() error {
	if !t.broken {
		return nil
	}
	next, err := dial(t.netns)
	if err != nil {
		return fmt.Errorf("open conntrack socket: %w", err)
	}
	old := t.dumps
	t.dumps, t.broken = next, false
	return old.conn.Close()
}

// dumping is a dump under way. What is left of it after a failure is read and
// dropped, since the kernel begins no other before its end.
type dumping struct {
	sequence uint32
	filter   Filter
	yield    func(Flow) error

	failed            error // of yield or of the context
	interrupted, done bool
}

// take takes a message. It returns the kernel's errors, which end the dump.
func (d *dumping) take(m message) error {
	switch {
	case m.sequence != d.sequence: // left behind by a dump that could not be read to its end
		return nil
	case m.kind == netlink.Done || m.kind == netlink.Error:
		d.done = true
		return m.err()
	case d.failed != nil:
		return nil
	}
	d.interrupted = d.interrupted || m.flags&netlink.DumpInterrupted != 0
	f, err := parseFlow(m.data)
	switch {
	case err != nil:
		d.failed = fmt.Errorf("dump conntrack table: %w", err)
	case d.filter.Selects(&f):
		d.failed = d.yield(f)
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
// these were. An entry that took a flow's place with the same tuple stays. One
// that the kernel does not remove, such as one that is offloaded to hardware or
// a flow table (unix.EBUSY), does not keep the others: the first error of all is
// returned in the end.
func (t *Table) Delete(ctx context.Context, flows []Flow) (n int, err error) {
	for len(flows) > 0 {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		batch := flows[:min(len(flows), deleteBatch)]
		flows = flows[len(batch):]
		removed, failed := t.deleteBatch(batch)
		n += removed
		if failed != nil && err == nil {
			err = fmt.Errorf("delete conntrack entries: %w", explain(failed))
		}
	}
	return n, err
}

func (t *Table) deleteBatch(flows []Flow) (n int, err error) {
	requests := make([]netlink.Message, len(flows))
	for i := range flows {
		requests[i] = deleteRequest(&flows[i])
	}
	// The kernel has carried all of them out when it acknowledges the last.
	requests[len(requests)-1].Header.Flags |= netlink.Acknowledge
	if requests, err = t.deletes.conn.SendMessages(requests); err != nil {
		return 0, err
	}
	first, last := requests[0].Header.Sequence, requests[len(requests)-1].Header.Sequence
	n = len(flows)
	var failed error
	for {
		for m, err := range t.deletes.receive() {
			if err != nil {
				return 0, err // further answers may be lost: nobody knows how many are gone
			}
			if m.sequence-first > last-first {
				continue // left behind by a call that ended like that
			}
			if err := m.err(); err != nil {
				n--
				if failed == nil && !errors.Is(err, unix.ENOENT) { // gone by itself
					failed = err
				}
			}
			if m.sequence == last {
				return n, failed
			}
		}
	}
}

// Count returns how many entries the table has, and how many it may have before
// the kernel drops packets of new connections; 0 means that there is no limit.
// Kernels before 4.18 do not say, which is 0 as well. It takes no walk of the
// table.
func (t *Table) Count(ctx context.Context) (entries, limit int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	sent, err := t.counts.conn.Send(request(ctStats, netfilter.ProtoUnspec, 0))
	if err != nil {
		return 0, 0, fmt.Errorf("count conntrack entries: %w", err)
	}
	for {
		for m, err := range t.counts.receive() {
			if err == nil && m.sequence != sent.Header.Sequence {
				continue
			}
			if err == nil {
				err = m.err()
			}
			if err == nil {
				entries, limit, err = parseCount(m.data)
			}
			if err != nil {
				return 0, 0, fmt.Errorf("count conntrack entries: %w", explain(err))
			}
			return entries, limit, nil
		}
	}
}
