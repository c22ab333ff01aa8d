package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
)

// Config says in which network namespace to work.
type Config struct {
	// NetNS is a file descriptor of the network namespace. It can be closed after
	// Open. 0 is the namespace of the calling thread. All threads should be in that
	// one, since a Table may have to open a socket again later.
	NetNS int
	// Syscalls makes the system calls of each socket; nil stands for the kernel's own. It is
	// for tests of the kernel's faults.
	Syscalls func() Syscalls
}

// Table is the connection tracking table of one network namespace, with both
// families. Flows, Delete, Find, Count and Size may run at the same time, also one inside
// another. But Flows must not run twice at the same time, nor must Delete.
type Table struct {
	// A dump keeps its socket busy until its end, so the others have their own. Count and
	// Find share one.
	dumps, deletes, counts *socket
	// counting guards counts.
	counting sync.Mutex
	// netns is the Table's own descriptor of the namespace, or 0.
	netns int
	// calls is the Config's Syscalls.
	calls func() Syscalls
	// broken says that a dump was not read to its end. The kernel begins no other
	// dump on that socket (EBUSY), and may never send the rest.
	broken bool
}

const (
	// deleteBatch is the number of deletions in one datagram. The kernel acknowledges
	// only the last one. But each may fail, and the answer to that is a datagram of
	// up to about 1 KiB of kernel memory.
	deleteBatch = 256
	// ackMemory is room for the answers, in bytes, whatever net.core.rmem_default is.
	ackMemory = 1 << 20
)

// Open opens the sockets. Only their use needs CAP_NET_ADMIN in the namespace, and
// only their use shows whether the kernel has connection tracking.
func Open(config Config) (*Table, error) {
	t := Table{calls: config.Syscalls}
	if config.NetNS != 0 {
		var err error
		if t.netns, err = unix.FcntlInt(uintptr(config.NetNS), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return nil, fmt.Errorf("open conntrack socket: network namespace: %w", err)
		}
	}
	for _, s := range []**socket{&t.dumps, &t.deletes, &t.counts} {
		var err error
		if *s, err = dial(t.netns, t.calls); err != nil {
			return nil, errors.Join(fmt.Errorf("open conntrack socket: %w", err), t.Close())
		}
	}
	// An error does no harm: without CAP_NET_ADMIN the buffer is as large as rmem_max
	// allows, and deletions fail with EPERM anyway.
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

// ErrInterrupted says that a dump may have missed entries, since the kernel resized
// the table meanwhile.
var ErrInterrupted = errors.New("dump interrupted")

// Flows calls yield for each flow that the filter selects, while the kernel walks its
// table. It may miss entries that come or go meanwhile. Its memory does not grow with
// the table. An error of yield ends the call, and Flows returns it unchanged. Kernel
// errors match unix.EPERM (no CAP_NET_ADMIN) or unix.EINVAL (no
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
	if err := t.reopenDumps(); err != nil {
		return fmt.Errorf("dump conntrack table: %w", err)
	}
	sequence, _, err := t.dumps.send(request)
	if err != nil {
		return fmt.Errorf("dump conntrack table: %w", err)
	}
	d := dumping{sequence: sequence, filter: filter, yield: yield}
	for !d.done {
		if d.failed == nil {
			d.failed = ctx.Err()
		}
		for m, err := range t.dumps.receive() {
			if err == nil {
				err = d.handle(m)
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

// reopenDumps opens the socket for dumps again if a dump has broken it.
func (t *Table) reopenDumps() error {
	if !t.broken {
		return nil
	}
	next, err := dial(t.netns, t.calls)
	if err != nil {
		return fmt.Errorf("open conntrack socket: %w", err)
	}
	old := t.dumps
	t.dumps, t.broken = next, false
	return old.conn.Close()
}

// dumping is a dump under way. After a failure its rest is read and dropped, since the
// kernel begins no other dump before the end of this one.
type dumping struct {
	sequence uint32
	filter   Filter
	yield    func(Flow) error

	failed            error // of yield or of the context
	interrupted, done bool
}

// handle handles a message. It returns the kernel's errors, which end the dump.
func (d *dumping) handle(m message) error {
	switch {
	case m.sequence != d.sequence: // from an earlier dump that was not read to its end
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

// explain adds the meaning of the kernel's error number.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (is the kernel module nf_conntrack_netlink missing?)", err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w (offloaded to a flow table? kernels before 6.4 do not remove such an entry)", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (needs CAP_NET_ADMIN)", err)
	}
	return err
}

// RefusedError says which flows Delete could not remove, or may not have removed, and why
// the first of them stayed.
type RefusedError struct {
	Flows []Flow
	Err   error
}

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// Delete removes the flows that are still there and returns their number. A younger
// entry with the same tuple stays. The kernel may refuse to remove an entry, such as
// one that is offloaded to a flow table (unix.EBUSY, before 6.4). Delete still removes
// the others, and returns a RefusedError at the end. Another error is the context's.
func (t *Table) Delete(ctx context.Context, flows []Flow) (n int, err error) {
	var refused RefusedError
	for len(flows) > 0 {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		batch := flows[:min(len(flows), deleteBatch)]
		flows = flows[len(batch):]
		left, failed := t.deleteBatch(batch, &n)
		refused.Flows = append(refused.Flows, left...)
		if failed != nil && refused.Err == nil {
			refused.Err = fmt.Errorf("delete conntrack entries: %w", explain(failed))
		}
	}
	if refused.Err != nil {
		return n, &refused
	}
	return n, nil
}

// deleteBatch deletes flows and adds their number to n. It returns those that are left, or
// may be left, and the first error.
func (t *Table) deleteBatch(flows []Flow, n *int) (left []Flow, failed error) {
	requests := make([]netlink.Message, len(flows))
	for i := range flows {
		requests[i] = deleteRequest(&flows[i])
	}
	// The kernel has handled all of them when it acknowledges the last one.
	requests[len(requests)-1].Header.Flags |= netlink.Acknowledge
	first, last, err := t.deletes.send(requests...)
	if err != nil {
		return flows, err
	}
	deleted := len(flows)
	for {
		for m, err := range t.deletes.receive() {
			if err != nil {
				return flows, err // Other answers may be lost: the number of deletions is unknown.
			}
			if m.sequence-first > last-first {
				continue // from an earlier call that ended with such an error
			}
			if err := m.err(); err != nil {
				deleted--
				if !errors.Is(err, unix.ENOENT) { // ENOENT: it ended by itself.
					left, failed = append(left, flows[m.sequence-first]), cmp.Or(failed, err)
				}
			}
			if m.sequence == last {
				*n += deleted
				return left, failed
			}
		}
	}
}

// Count returns the number of entries in the table, and the number from which the
// kernel drops packets of new connections. A limit of 0 means that there is none, or
// that the kernel does not say (before 4.18). Count does not walk the table.
func (t *Table) Count(ctx context.Context) (entries, limit int, err error) {
	err = t.ask(ctx, request(ctStats, netfilter.ProtoUnspec, 0), func(answer []byte) (err error) {
		entries, limit, err = parseCount(answer)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("count conntrack entries: %w", err)
	}
	return entries, limit, nil
}

// Find returns the flow with that original tuple in the default zone; found is false if there
// is none. It does not walk the table.
func (t *Table) Find(ctx context.Context, protocol service.Protocol, original Tuple) (f Flow, found bool, err error) {
	err = t.ask(ctx, findRequest(&Flow{Protocol: protocol, Original: original}), func(answer []byte) (err error) {
		f, err = parseFlow(answer)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return Flow{}, false, nil
	case err != nil:
		return Flow{}, false, fmt.Errorf("find conntrack entry: %w", err)
	}
	return f, true, nil
}

// ask sends a request that has one answer, and hands the answer over.
func (t *Table) ask(ctx context.Context, question netlink.Message, parse func(answer []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.counting.Lock()
	defer t.counting.Unlock()
	sequence, _, err := t.counts.send(question)
	if err != nil {
		return err
	}
	for {
		for m, err := range t.counts.receive() {
			if err == nil && m.sequence != sequence {
				continue
			}
			if err == nil {
				err = m.err()
			}
			if err == nil {
				err = parse(m.data)
			}
			if err != nil {
				return explain(err)
			}
			return nil
		}
	}
}

// Size returns the number of entries in the table, and the number of buckets in the
// hash table that the kernel walks for a dump; 0 buckets if the kernel does not say.
func (t *Table) Size(ctx context.Context) (entries, buckets int, err error) {
	entries, _, err = t.Count(ctx)
	return entries, Files{}.Buckets(), err
}
