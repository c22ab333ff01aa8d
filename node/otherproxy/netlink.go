package otherproxy

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/nfnetlink"
)

// conn is a socket to nf_tables. It is for one goroutine.
type conn struct{ nfnetlink.Requester }

func dial() (*conn, error) {
	s, err := nfnetlink.Dial(nfnetlink.Config{})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	c := &conn{}
	c.Socket, c.Subsystem = s, unix.NFNL_SUBSYS_NFTABLES
	return c, nil
}

func (c *conn) close() { _ = c.Socket.Close() }

// named is the attributes that name an object, such as a chain by its table and its own name.
func named(kind uint16, name string) *nfnetlink.Encoder {
	return new(nfnetlink.Encoder).Text(kind, name)
}

// ask sends a request and visits the attributes of each object of the answer. An object that is
// not there, or a kernel without the family, is no error and no object.
func (c *conn) ask(kind, flags uint16, f ip.Family, of *nfnetlink.Encoder,
	visit func(nfnetlink.Attributes) error) error {
	err := c.Receive(kind, flags, uint8(f), of.B, func(m nfnetlink.Message) error {
		if err := m.Attributes().Check(); err != nil {
			return err
		}
		return visit(m.Attributes())
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// rules visits the rules of a chain.
func (c *conn) rules(f ip.Family, table, chain string, visit func(nfnetlink.Attributes) error) error {
	of := named(unix.NFTA_RULE_TABLE, table).Text(unix.NFTA_RULE_CHAIN, chain)
	return c.ask(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, f, of, func(a nfnetlink.Attributes) error {
		if a.Text(unix.NFTA_RULE_TABLE) != table || a.Text(unix.NFTA_RULE_CHAIN) != chain { // some kernels list all rules
			return nil
		}
		return visit(a)
	})
}

// generation is the number of the ruleset. Each transaction raises it.
func (c *conn) generation() (uint32, error) {
	a, err := c.Get(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil)
	if err != nil {
		return 0, fmt.Errorf("read the generation of the ruleset: %w", err)
	}
	return a.Uint32(unix.NFTA_GEN_ID), nil
}

// nfnlBatchGenID is NFNL_BATCH_GENID, which x/sys/unix lacks: the kernel refuses a transaction
// (ERESTART) if the ruleset has another generation.
const nfnlBatchGenID = 1

// batch is the messages of a transaction.
type batch struct{ nfnetlink.Encoder }

// newBatch begins a transaction on the ruleset of that generation.
func newBatch(generation uint32) *batch {
	b := &batch{}
	at := b.BeginBatch(0)
	b.Uint32(nfnlBatchGenID, generation).EndMessage(at)
	return b
}

// delete adds a deletion.
func (b *batch) delete(kind uint16, f ip.Family, of *nfnetlink.Encoder) { b.message(kind, 0, f, of) }

// create adds an object.
func (b *batch) create(kind uint16, f ip.Family, of *nfnetlink.Encoder) {
	b.message(kind, unix.NLM_F_CREATE, f, of)
}

func (b *batch) message(kind, flags uint16, f ip.Family, of *nfnetlink.Encoder) {
	at := b.BeginMessage(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, 0, uint8(f))
	b.B = append(b.B, of.B...)
	b.EndMessage(at)
}

// commit carries out the transaction.
func (b *batch) commit() error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.close()
	b.EndBatch(0, 0)
	if _, err := c.Socket.WriteLimit(len(b.B)); err != nil {
		return err
	}
	if err := c.Socket.Send(b.B); err != nil {
		return err
	}
	// The kernel has carried out the transaction by now. It answers only refusals, unless asked: so no answer
	// means that there was none.
	datagram, err := c.Socket.Queued()
	for m := range nfnetlink.Messages(datagram) {
		if err == nil {
			err = m.Err()
		}
	}
	switch {
	case err == io.EOF:
		return nil
	case errors.Is(err, unix.ERESTART), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %w", ErrChanged, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (needs CAP_NET_ADMIN in the network namespace, and a table that no process owns)", err)
	}
	return err
}
