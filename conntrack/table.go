package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nfnetlink"
)

// Config says in which network namespace to work.
type Config = nfnetlink.Config

// Table is the connection tracking table of one network namespace, with both
// families. Flows, Delete, Find, Count, Invalid and Size may run at the same time, also one inside
// another. But Flows must not run inside itself, nor must Delete run twice at the same time.
type Table struct {
	// A dump keeps its socket busy until its end, so the others have their own. Count, Invalid
	// and Find share one.
	dumps, counts nfnetlink.Requester
	deletes       *nfnetlink.Socket
	// deleted is the sequence number of the last deletion, and deletions memory for the next ones.
	deleted   uint32
	deletions nfnetlink.Encoder
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
	t := &Table{dumps: nfnetlink.Requester{Subsystem: unix.NFNL_SUBSYS_CTNETLINK},
		counts: nfnetlink.Requester{Subsystem: unix.NFNL_SUBSYS_CTNETLINK}}
	for _, s := range []**nfnetlink.Socket{&t.dumps.Socket, &t.deletes, &t.counts.Socket} {
		var err error
		if *s, err = nfnetlink.Dial(config); err != nil {
			return nil, errors.Join(fmt.Errorf("open conntrack socket: %w", err), t.Close())
		}
	}
	// An error does no harm: without CAP_NET_ADMIN the buffer is as large as rmem_max
	// allows, and deletions fail with EPERM anyway.
	_ = t.deletes.SetReadBuffer(ackMemory)
	return t, nil
}

// Close closes the sockets.
func (t *Table) Close() error {
	var failed error
	for _, s := range []*nfnetlink.Socket{t.dumps.Socket, t.deletes, t.counts.Socket} {
		if s != nil {
			failed = errors.Join(failed, s.Close())
		}
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
	for _, family := range filter.families() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.dump(ctx, family, filter.attributes(), filter, yield); err != nil {
			return err
		}
	}
	return nil
}

// dump has the kernel select by attributes, and then selects by the filter.
func (t *Table) dump(ctx context.Context, family uint8, attributes []byte, filter Filter,
	yield func(Flow) error) error {
	t.dumps.Lock()
	defer t.dumps.Unlock()
	var failed error // of yield or of the context
	interrupted := false
	err := t.dumps.Receive(ctGet, unix.NLM_F_DUMP, family, attributes, func(m nfnetlink.Message) error {
		if failed = ctx.Err(); failed != nil {
			return failed
		}
		interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
		f, err := parseFlow(m.Attributes())
		switch {
		case err != nil:
			return err
		case filter.Selects(&f):
			failed = yield(f)
		}
		return failed
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("dump conntrack table: %w", explain(err))
	case interrupted:
		return fmt.Errorf("dump conntrack table: %w", ErrInterrupted)
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
	t.deletes.Drain() // of answers to an earlier call that ended with an error
	first, last := t.deleted+1, t.deleted+uint32(len(flows))
	t.deleted = last
	t.deletions.B = t.deletions.B[:0]
	for i := range flows {
		addDeletion(&t.deletions, &flows[i], 0, first+uint32(i))
	}
	// The kernel has handled all of them when it acknowledges the last one.
	nfnetlink.AskAcknowledgement(t.deletions.B)
	if err := t.deletes.Send(t.deletions.B); err != nil {
		return flows, err
	}
	deleted := len(flows)
	for {
		datagram, err := t.deletes.Queued()
		if err == io.EOF {
			err = nfnetlink.ErrUnanswered
		}
		if err != nil {
			return flows, err // Other answers may be lost: the number of deletions is unknown.
		}
		for m := range nfnetlink.Messages(datagram) {
			if m.Seq-first > last-first {
				continue // a late answer to an earlier call
			}
			if err := m.Err(); err != nil {
				deleted--
				if !errors.Is(err, unix.ENOENT) { // ENOENT: it ended by itself.
					left, failed = append(left, flows[m.Seq-first]), cmp.Or(failed, err)
				}
			}
			if m.Seq == last {
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
	err = t.ask(ctx, ctStats, unix.NFPROTO_UNSPEC, nil, func(answer nfnetlink.Attributes) (err error) {
		entries, limit, err = parseCount(answer)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("count conntrack entries: %w", err)
	}
	return entries, limit, nil
}

// Invalid returns the number of packets that the kernel could assign to no connection since the network namespace
// began, such as segments out of the window. The kernel counts to 2^32 on each CPU and then from 0.
func (t *Table) Invalid(ctx context.Context) (packets uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	t.counts.Lock()
	defer t.counts.Unlock()
	err = t.counts.Receive(ctStatsCPU, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, nil, func(m nfnetlink.Message) error {
		packets += uint64(m.Attributes().Uint32(ctaStatsCPUInvalid))
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count invalid packets: %w", explain(err))
	}
	return packets, nil
}

// Find returns the flow with that original tuple in the default zone; found is false if there
// is none. It does not walk the table.
func (t *Table) Find(ctx context.Context, protocol service.Protocol, original Tuple) (f Flow, found bool, err error) {
	var tuple nfnetlink.Encoder
	wanted := Flow{Protocol: protocol, Original: original}
	wanted.addTuple(&tuple, ctaTupleOrig, original)
	err = t.ask(ctx, ctGet, uint8(wanted.Family()), tuple.B, func(answer nfnetlink.Attributes) (err error) {
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
func (t *Table) ask(ctx context.Context, kind uint16, family uint8, attributes []byte,
	parse func(answer nfnetlink.Attributes) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.counts.Lock()
	defer t.counts.Unlock()
	answer, err := t.counts.Get(kind, family, attributes)
	if err == nil {
		err = parse(answer)
	}
	return explain(err)
}

// Size returns the number of entries in the table, and the number of buckets in the
// hash table that the kernel walks for a dump; 0 buckets if the kernel does not say.
func (t *Table) Size(ctx context.Context) (entries, buckets int, err error) {
	entries, _, err = t.Count(ctx)
	return entries, Files{}.Buckets(), err
}
