package kernel

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// Config says where to work.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in. 0 is the
	// one of the calling thread. It can be closed after Open.
	NetNS int
}

// Conn works on the tables of one network namespace. Its methods are safe for
// concurrent use; Apply, Claim and Read are done one after the other, and Sweep
// beside them.
type Conn struct {
	// exclusive is held over a transaction and over a Read.
	exclusive sync.Mutex
	writer    *socket
	// encoder and fences are memory for the next batch.
	encoder batchEncoder
	fences  encoder
	seq     uint32
	// spent is of the last Apply.
	spent spent
	// withoutOwner is set once the kernel has refused the flags of an owned table.
	withoutOwner bool

	// destroy is the message that deletes elements in Sweep, unless the kernel
	// has refused it.
	destroy        uint16
	withoutDestroy bool
	// sweeps is how many transactions of Sweep's the kernel is known to have
	// made. None counts that might have been empty: counted all the same, it
	// would hide somebody else's.
	sweeps uint32

	reader requester
	// sweeper is for dumps of dynamic maps, which take long and which nothing
	// else is to wait for.
	sweeper requester
}

// Open opens a socket for writing, which owns the tables where the kernel has
// ownership, and two for reading. It needs CAP_NET_ADMIN in the namespace only
// once something is read or written.
func Open(config Config) (*Conn, error) {
	c := &Conn{destroy: destroyElements}
	for _, s := range []struct {
		what   string
		socket **socket
	}{{"writing", &c.writer}, {"reading", &c.reader.socket}, {"sweeping", &c.sweeper.socket}} {
		var err error
		if *s.socket, err = dial(config.NetNS); err != nil {
			return nil, errors.Join(fmt.Errorf("open netlink socket for %s: %w", s.what, err), c.Close())
		}
	}
	return c, nil
}

// Close closes all sockets. Tables stay; owned ones become orphans, which
// anyone may change until they are claimed.
func (c *Conn) Close() error {
	var errs []error
	for _, s := range []*socket{c.writer, c.reader.socket, c.sweeper.socket} {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	return errors.Join(errs...)
}

// Apply carries out the batch as one transaction: all of it takes effect, or,
// with a *BatchError, nothing. An error that matches ErrOutcomeUnknown leaves
// open what did. An empty batch does nothing. Chains that are new to a table in
// use have a transaction of their own before (nft.Batch.Transactions), and stay
// when the rest is refused; nothing points to them then.
//
// A transaction has to fit the socket's send buffer, which grows as needed.
// Where that is forbidden (without CAP_NET_ADMIN over the first user
// namespace), a batch that is larger than twice net.core.wmem_max (212,992 on most
// kernels: 0.4 MB, some 7,000 elements) is carried out in its order as several
// transactions.
func (c *Conn) Apply(b nft.Batch) error {
	if b.Empty() {
		return nil
	}
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	c.spent = spent{}
	for _, transaction := range b.Transactions() {
		if err := c.applyOne(transaction); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) applyOne(b nft.Batch) error {
	err := c.apply(b, false)
	if c.refusesOwner(err) {
		c.withoutOwner = true
		err = c.apply(b, false)
	}
	if hidesElement(err) {
		// Refused again, message by message, which tells the element.
		err = c.apply(b, true)
	}
	return err
}

func (c *Conn) apply(b nft.Batch, single bool) error {
	flags, err := c.tableFlags(b)
	if err != nil {
		return err
	}
	begin := c.seq + 1
	start := time.Now()
	c.encoder.reset(begin+1, flags, single)
	err = c.encoder.batch(b)
	c.spent.encode += time.Since(start)
	if err != nil {
		return err
	}
	c.seq = begin + uint32(len(c.encoder.spans)) + 1
	parts, err := c.split()
	if err != nil {
		return err
	}
	for i, part := range parts {
		start := time.Now()
		answers, err := c.transact(begin, part)
		c.spent.commit += time.Since(start)
		switch {
		case err != nil && i > 0:
			return fmt.Errorf("transaction %d of %d: %w: %w", i+1, len(parts), ErrOutcomeUnknown, err)
		case err != nil:
			return err
		case len(answers) > 0:
			return c.batchError(b, answers, i > 0)
		}
	}
	return nil
}

// split cuts the messages where they do not fit into one transaction. Each
// operation needs only what came before it, so any cut will do.
func (c *Conn) split() ([][]byte, error) {
	const fences = 2 * (headerLen + nfgenmsgLen)
	b, spans := c.encoder.b, c.encoder.spans
	limit, err := c.writer.writeLimit(len(b) + fences)
	if err != nil {
		return nil, err
	}
	var parts [][]byte
	start := 0
	for i := range spans {
		end := len(b)
		if i+1 < len(spans) {
			end = spans[i+1].at
		}
		if at := spans[i].at; end-start+fences > limit && at > start {
			parts = append(parts, b[start:at])
			start = at
		}
	}
	return append(parts, b[start:]), nil
}

// transact sends messages as one transaction and returns the kernel's refusals.
// The begin's sequence number is begin, the end's is the Conn's.
func (c *Conn) transact(begin uint32, messages []byte) ([]answer, error) {
	c.fences.b = c.fences.b[:0]
	c.fences.fence(unix.NFNL_MSG_BATCH_BEGIN, 0, begin)
	at := len(c.fences.b)
	// Only the end is acknowledged, and not by all kernels: one reply instead of
	// thousands, which would not fit the receive buffer.
	c.fences.fence(unix.NFNL_MSG_BATCH_END, unix.NLM_F_ACK, c.seq)
	if err := c.writer.send(c.fences.b[:at], messages, c.fences.b[at:]); err != nil {
		c.writer.drain()
		return nil, err
	}
	return c.answers(begin)
}

// answers reads what the kernel queued during the send. No refusal means that
// the transaction was made: a failed one always has one.
func (c *Conn) answers(begin uint32) ([]answer, error) {
	var refused []answer
	done, lost := false, error(nil)
	for {
		b, err := c.writer.queued()
		if err == io.EOF {
			break
		}
		if errors.Is(err, unix.ENOBUFS) {
			lost = err // reported once; what did fit is still queued
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
		for m := range messages(b) {
			a, ok := parseAnswer(m)
			switch {
			case !ok || a.seq-begin > c.seq-begin:
				// Of no message of ours.
			case a.errno != 0:
				refused = append(refused, a)
			default:
				done = true
			}
		}
	}
	if lost != nil && !done && len(refused) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, lost)
	}
	return refused, nil
}

func (c *Conn) batchError(b nft.Batch, answers []answer, partial bool) error {
	e := &BatchError{Partial: partial}
	for _, a := range answers {
		op := c.encoder.opError(b, a)
		if op.Hint == "" {
			op.Hint = c.hint(op)
		}
		e.Errors = append(e.Errors, op)
	}
	return e
}

// needsAdmin is what helps where the kernel refuses everything.
const needsAdmin = "needs CAP_NET_ADMIN in the network namespace"

// hint says what helps against a refusal.
func (c *Conn) hint(e OpError) string {
	_, chain := e.Op.(nft.AddChain)
	set, _ := e.Op.(nft.AddSet)
	switch {
	case e.Errno == unix.EPERM && e.Op == nil:
		return needsAdmin
	case e.Errno == unix.EPERM:
		t, found, err := c.table(e.Table)
		if err == nil && found && t.Owner != 0 && t.Owner != c.writer.conn.PID() {
			return fmt.Sprintf("table %s is owned by the process with netlink port %d: stop it first", e.Table, t.Owner)
		}
	case set.Set != nil && set.Set.Interval && (e.Errno == unix.EINVAL || e.Errno == unix.EOPNOTSUPP):
		return "do intervals of this concatenation fit the kernel? Linux has them since 5.6"
	case e.Errno == unix.ENOENT && chain:
		return "does the kernel lack the module nft_chain_nat?"
	}
	return ""
}

// refusesOwner says that a batch failed since the kernel does not know the flags
// of an owned table.
func (c *Conn) refusesOwner(err error) bool {
	var batch *BatchError
	if c.withoutOwner || !errors.As(err, &batch) {
		return false
	}
	asked := slices.Contains(slices.Collect(maps.Values(c.encoder.flags)), ownedTable)
	return asked && slices.ContainsFunc(batch.Errors, func(e OpError) bool {
		_, adds := e.Op.(nft.AddTable)
		return adds && (e.Errno == unix.EOPNOTSUPP || e.Errno == unix.EINVAL)
	})
}

// hidesElement says that nothing was done because of some element, and that the
// kernel did not say which: 5.10 has no offsets for elements.
func hidesElement(err error) bool {
	var batch *BatchError
	if !errors.As(err, &batch) || batch.Partial {
		return false
	}
	return slices.ContainsFunc(batch.Errors, func(e OpError) bool {
		switch e.Op.(type) {
		case nft.AddElements, nft.DeleteElements:
			return e.Element == nil && !e.located
		}
		return false
	})
}

// Generation returns the number of the namespace's ruleset, which each
// transaction of anybody raises by one, but none that this Conn's Sweep made in
// a table which others can change as well: what it deletes is no part of any
// program. In a table of our own Sweep may raise it, and there nobody asks.
func (c *Conn) Generation() (uint32, error) {
	c.exclusive.Lock() // so that no sweep is between its transaction and the count
	defer c.exclusive.Unlock()
	c.reader.Lock()
	defer c.reader.Unlock()
	generation, err := c.generation()
	return generation - c.sweeps, err
}

func (c *Conn) generation() (uint32, error) {
	attrs, err := c.reader.request(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil)
	if err != nil {
		return 0, fmt.Errorf("read ruleset generation: %w", err)
	}
	return attributeUint32(attrs, unix.NFTA_GEN_ID), nil
}
