package kernel

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// Config says where to work.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in. 0 stands for the
	// namespace of the calling thread. The caller can close it after Open.
	NetNS int
	// Syscalls makes the system calls of each socket; nil stands for the kernel's own. It is
	// for tests of the kernel's faults.
	Syscalls func() nfnetlink.Syscalls
	// Around makes the call that carries out a transaction of Apply; nil just makes it. It is for tests
	// that compare the kernel with a model. It must not use the Conn.
	Around func(b nft.Batch, apply func() error) error
}

// Conn works on the tables of one network namespace. Its methods are safe for
// concurrent use. Apply, Own and Read wait for each other; Sweep runs beside them.
type Conn struct {
	// exclusive is held during a transaction and during a Read.
	exclusive sync.Mutex
	writer    *nfnetlink.Socket
	// around is the Config's Around.
	around func(b nft.Batch, apply func() error) error
	// encoder and fences are memory for the next batch.
	encoder batchEncoder
	fences  nfnetlink.Encoder
	seq     uint32
	// spent is the time that the last Apply took.
	spent spent
	// acknowledgesEnd is set once the kernel has acknowledged the end of a transaction. From then on
	// it has to acknowledge each one that was made.
	acknowledgesEnd bool
	// withoutOwner is set once the kernel has refused the flags of an owned table.
	withoutOwner bool

	// destroy is the message that deletes elements in Sweep, unless the kernel
	// has refused it.
	destroy        uint16
	withoutDestroy bool
	// refused says that the kernel may have refused a transaction of this Conn in its validation, and that leaveValidation
	// has made none since.
	refused bool
	// uncounted is how many transactions Sweep and leaveValidation have certainly made. One that may have been
	// empty does not count: it would hide a transaction of another process.
	uncounted uint32

	reader nfnetlink.Requester
	// lookUpFrom is the number of elements from which on a set is read by keys.
	lookUpFrom int
	// sweeper is for dumps of dynamic maps. They take long, and nothing else should wait
	// for them.
	sweeper nfnetlink.Requester
	// counts is for counters, for the same reason.
	counts nfnetlink.Requester
}

// Open opens one socket for writing and three for reading. The one for writing owns the tables if
// the kernel supports owners. Open itself needs no rights; reading and writing need CAP_NET_ADMIN
// in the namespace.
func Open(config Config) (*Conn, error) {
	c := &Conn{destroy: destroyElements, lookUpFrom: lookUpFrom, around: config.Around}
	for _, r := range []*nfnetlink.Requester{&c.reader, &c.sweeper, &c.counts} {
		r.Subsystem = unix.NFNL_SUBSYS_NFTABLES
	}
	if c.around == nil {
		c.around = func(_ nft.Batch, apply func() error) error { return apply() }
	}
	for _, s := range []struct {
		what   string
		socket **nfnetlink.Socket
	}{{"writing", &c.writer}, {"reading", &c.reader.Socket}, {"sweeping", &c.sweeper.Socket},
		{"counters", &c.counts.Socket}} {
		var err error
		if *s.socket, err = nfnetlink.Dial(nfnetlink.Config{NetNS: config.NetNS, Syscalls: config.Syscalls}); err != nil {
			return nil, errors.Join(fmt.Errorf("open netlink socket for %s: %w", s.what, err), c.Close())
		}
	}
	return c, nil
}

// Close closes all sockets. Tables stay. Owned tables become orphans, which any process
// may change until one owns them.
func (c *Conn) Close() error {
	var errs []error
	for _, s := range []*nfnetlink.Socket{c.writer, c.reader.Socket, c.sweeper.Socket, c.counts.Socket} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// Apply executes the batch. Each of its transactions (nft.Batch.Transactions) takes effect as a
// whole, or not at all. A refusal is a *BatchError. Operations that went ahead stay if the rest is
// refused; no packet meets them. An error that matches ErrOutcomeUnknown means that some or all of
// the batch may be in the kernel. An empty batch does nothing.
//
// A transaction has to fit the socket's send buffer, which grows as needed; in a user namespace without CAP_NET_ADMIN
// over the first one, up to twice net.core.wmem_max (212,992 on most kernels, so 0.4 MB: some 7,000 elements). A larger
// transaction becomes several, cut between two messages in the order of the batch's phases. So does one that the kernel
// has no memory to receive.
func (c *Conn) Apply(b nft.Batch) error {
	if b.Empty() {
		return nil
	}
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	c.spent = spent{}
	for _, transaction := range b.Transactions() {
		c.leaveValidation(transaction)
		if err := c.around(transaction, func() error { return c.applyTransaction(transaction) }); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) applyTransaction(b nft.Batch) error {
	err := c.applyOnce(b, false)
	if c.refusesOwner(err) {
		c.withoutOwner = true
		err = c.applyOnce(b, false)
	}
	if hidesElement(err) {
		// With a message for each element, the kernel's answer says which it refuses.
		c.leaveValidation(b)
		err = c.applyOnce(b, true)
	}
	return err
}

func (c *Conn) applyOnce(b nft.Batch, single bool) error {
	flags, err := c.tableFlags(b)
	if err != nil {
		return err
	}
	begin := c.seq + 1
	start := time.Now()
	c.encoder.reset(begin+1, flags, single)
	defer c.encoder.release()
	err = c.encoder.addBatch(b)
	c.spent.encode += time.Since(start)
	if err != nil {
		return err
	}
	c.seq = begin + uint32(len(c.encoder.spans)) + 1
	return c.commitEncoded(b, begin)
}

// commitEncoded sends the encoded messages as one transaction, or as several where one datagram does not hold them:
// each message needs only earlier ones, so it may cut between any two.
func (c *Conn) commitEncoded(b nft.Batch, begin uint32) error {
	const fences = 2 * nfnetlink.BodyAt
	limit, err := c.writer.WriteLimit(len(c.encoder.B) + fences)
	if err != nil {
		return err
	}
	for first := 0; first < len(c.encoder.spans); {
		end := c.encoder.endOfFitting(first, limit-fences)
		datagram := c.encoder.messagesBetween(first, end)
		start := time.Now()
		answers, err := c.commitMessages(begin, datagram)
		c.spent.commit += time.Since(start)
		var errno syscall.Errno // of a datagram that the kernel did not take, and so has done nothing
		tooLarge := !errors.Is(err, ErrOutcomeUnknown) && errors.As(err, &errno) && causeOf(errno) == ofShortage
		switch {
		case tooLarge && end-first > 1:
			limit = len(datagram)/2 + fences
			continue
		case tooLarge:
			return &BatchError{Errors: []OpError{{Errno: errno}}, Partial: first > 0}
		case err != nil && first > 0:
			return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		case err != nil:
			return err
		case len(answers) > 0:
			c.refused = c.refused || slices.ContainsFunc(answers, ofValidation)
			return c.batchError(b, answers, first > 0)
		}
		first = end
	}
	return nil
}

// commitMessages sends messages as one transaction and returns the kernel's refusals.
// The transaction's first message has the sequence number begin, and its last c.seq.
func (c *Conn) commitMessages(begin uint32, messages []byte) ([]nfnetlink.Answer, error) {
	c.fences.B = c.fences.B[:0]
	c.fences.EndMessage(c.fences.BeginBatch(begin))
	at := len(c.fences.B)
	// At most two messages ask for acknowledgements; thousands of replies would not fit the receive buffer. That
	// of the end says that the transaction was made, but kernels before 6.10 do not send it. There that of
	// the last message says that answers arrive. Every kernel sends it, made or not.
	if !c.acknowledgesEnd {
		nfnetlink.AskAcknowledgement(messages)
	}
	c.fences.EndBatch(unix.NLM_F_ACK, c.seq)
	if err := c.writer.Send(c.fences.B[:at], messages, c.fences.B[at:]); err != nil {
		c.writer.Drain()
		return nil, err
	}
	return c.answers(begin)
}

// answers reads what the kernel queued during the send.
func (c *Conn) answers(begin uint32) ([]nfnetlink.Answer, error) {
	var refused []nfnetlink.Answer
	arrived, made, lost := false, false, error(nil)
	for {
		b, err := c.writer.Queued()
		if err == io.EOF {
			break
		}
		if errors.Is(err, unix.ENOBUFS) {
			lost = err // reported once; the answers that fit are still queued
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
		}
		for m := range nfnetlink.Messages(b) {
			a, ok := m.Answer()
			switch {
			case !ok || a.Seq-begin > c.seq-begin:
				// An answer to no message of ours.
			case a.Errno != 0:
				refused = append(refused, a)
			default:
				arrived, made = true, made || a.Seq == c.seq
			}
		}
		if made {
			break // The acknowledgement of the end is the last nfnetlink.Answer.
		}
	}
	return refused, c.outcome(refused, arrived, made, lost)
}

// outcome judges the answers to a transaction. A failed one always has a refusal, which may be
// lost. arrived says that some acknowledgement is there, made that it is that of the
// end.
func (c *Conn) outcome(refused []nfnetlink.Answer, arrived, made bool, lost error) error {
	switch {
	case made || len(refused) > 0:
		c.acknowledgesEnd = c.acknowledgesEnd || made
		return nil
	case lost == nil && arrived && !c.acknowledgesEnd:
		return nil // Linux before 6.10
	case lost == nil:
		lost = nfnetlink.ErrUnanswered
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, lost)
}

func (c *Conn) batchError(b nft.Batch, answers []nfnetlink.Answer, partial bool) error {
	e := &BatchError{Partial: partial}
	for _, a := range answers {
		op := c.encoder.opError(b, a)
		if op.Hint == "" {
			op.Hint = c.hintFor(op)
		}
		e.Errors = append(e.Errors, op)
	}
	return e
}

// needsAdmin is the hint for a kernel that refuses everything.
const needsAdmin = "needs CAP_NET_ADMIN in the network namespace"

// hintFor returns what helps against a refusal, or nothing where that is not known.
func (c *Conn) hintFor(e OpError) string {
	_, chain := e.Op.(nft.AddChain)
	set, _ := e.Op.(nft.AddSet)
	switch {
	case e.Errno == unix.EPERM && e.Op == nil:
		return needsAdmin
	case e.Errno == unix.EPERM:
		t, found, err := c.lookUpTable(e.Table)
		if err == nil && found && t.Owner != 0 && t.Owner != c.writer.Port {
			return fmt.Sprintf("table %s is owned by the process with netlink port %d: stop it first", e.Table, t.Owner)
		}
	case set.Set != nil && setFlags(set.Set)&setConcat != 0 && (e.Errno == unix.EINVAL || e.Errno == unix.EOPNOTSUPP):
		return "do intervals of this concatenation fit the kernel? Linux has them since 5.6"
	case e.Errno == unix.ENOENT && chain:
		return "does the kernel lack the module nft_chain_nat?"
	}
	return ""
}

// refusesOwner says that a batch failed because the kernel does not know the flags of
// an owned table.
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

// hidesElement says that the kernel refused a batch because of an element and did not say
// which: Linux 5.10 has no offsets for elements.
func hidesElement(err error) bool {
	var batch *BatchError
	if !errors.As(err, &batch) || batch.Partial {
		return false
	}
	return slices.ContainsFunc(batch.Errors, func(e OpError) bool {
		switch e.Op.(type) {
		case nft.AddElements, nft.DeleteElements:
			return e.Element == nil && !e.located && causeOf(e.Errno) == ofPart
		}
		return false
	})
}

// Generation returns the number of the namespace's ruleset, which each transaction of any process raises by one. Those
// of this Conn's Sweep do not count in tables that others can change too: the elements that they delete are in no
// program. In owned tables they may count; nothing compares generations there. Nor do those of leaveValidation count.
func (c *Conn) Generation() (uint32, error) {
	c.exclusive.Lock() // so that no sweep has made its transaction and not yet counted it
	defer c.exclusive.Unlock()
	c.reader.Lock()
	defer c.reader.Unlock()
	generation, err := c.generation()
	return generation - c.uncounted, err
}

func (c *Conn) generation() (uint32, error) {
	attrs, err := c.reader.Get(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil)
	if err != nil {
		return 0, fmt.Errorf("read ruleset generation: %w", err)
	}
	return attrs.Uint32(unix.NFTA_GEN_ID), nil
}
