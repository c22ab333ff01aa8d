package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// countsOfOne is how many elements Counts asks for in one request at most. The kernel queues
// an answer of up to 1 kB for each, and the receive buffer has 212,992 bytes on most kernels.
const countsOfOne = 64

// dumpTries is how often a dump of counters starts again because another transaction came
// in between.
const dumpTries = 8

// ChainCount returns how many packets all counters in the chain's rules have counted since the
// rules were written, and 0 if there is no such chain.
func (c *Conn) ChainCount(table nft.TableID, chain string) (packets uint64, err error) {
	c.counts.Lock()
	defer c.counts.Unlock()
	of := new(nfnetlink.Encoder).Text(unix.NFTA_RULE_TABLE, table.Name).Text(unix.NFTA_RULE_CHAIN, chain).B
	err = c.dumpCounts(unix.NFT_MSG_GETRULE, table.Family, of, func() { packets = 0 },
		func(attrs nfnetlink.Attributes) error {
			// Some kernels list the rules of all tables.
			if attrs.Text(unix.NFTA_RULE_TABLE) != table.Name || attrs.Text(unix.NFTA_RULE_CHAIN) != chain {
				return nil
			}
			for _, x := range attrs.Get(unix.NFTA_RULE_EXPRESSIONS).All() {
				n, _ := counted(x)
				packets += n
			}
			return nil
		})
	if err != nil {
		return 0, fmt.Errorf("read the counters of chain %s %s: %w", table, chain, err)
	}
	return packets, nil
}

// dumpCounts calls begin and visits the objects of a dump, and does both again each time that another transaction comes
// in between, dumpTries times at most. A missing table, chain or set has no objects: also if it goes during the dump,
// the last call is that of begin.
func (c *Conn) dumpCounts(kind uint16, family nft.Family, of []byte, begin func(),
	visit func(nfnetlink.Attributes) error) error {
	for try := 1; ; try++ {
		begin()
		err := c.counts.Receive(kind, unix.NLM_F_DUMP, uint8(family), of, func(m nfnetlink.Message) error {
			return visit(m.Attributes())
		})
		switch {
		case errors.Is(err, unix.ENOENT):
			begin()
			return nil
		case !errors.Is(err, unix.EINTR) || try == dumpTries:
			return err
		}
	}
}

// counted returns what an expression has counted; false if it is no counter.
func counted(expression nfnetlink.Attributes) (packets uint64, ok bool) {
	if expression.Text(unix.NFTA_EXPR_NAME) != counterName {
		return 0, false
	}
	v := expression.Get(unix.NFTA_EXPR_DATA).Get(unix.NFTA_COUNTER_PACKETS)
	if len(v) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(v), true
}

// elementsOf is the attributes of a request for all elements.
func elementsOf(table nft.TableID, set *nft.Set) *encoder {
	e := &encoder{}
	e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table.Name).Text(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
	return e
}

// elementsWith is the attributes of a request for the elements with these keys.
func elementsWith(table nft.TableID, set *nft.Set, keys []nft.Value) (*encoder, error) {
	e, shape := elementsOf(table, set), shapeOf(set, table.Family)
	list := e.BeginNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for _, key := range keys {
		if err := e.addElement(&nft.Element{Key: key}, shape, true); err != nil {
			return nil, err
		}
	}
	e.EndNest(list)
	return e, nil
}

// Count is how many packets the counter of an element has counted since the element was
// written.
type Count struct {
	Key, Data nft.Value
	Packets   uint64
}

// Counts visits the elements of the set or map with these keys that have a counter. It leaves
// out keys without element. The set must be declared as in the kernel. The cost follows
// the number of keys.
func (c *Conn) Counts(table nft.TableID, set *nft.Set, keys []nft.Value, visit func(Count)) error {
	c.counts.Lock()
	defer c.counts.Unlock()
	shape := shapeOf(set, table.Family)
	for len(keys) > 0 {
		some := keys[:min(countsOfOne, len(keys))]
		seen := 0
		request, err := elementsWith(table, set, some)
		if err != nil {
			return fmt.Errorf("read counters of %s %s: %w", table, set.Name, err)
		}
		err = c.counts.Receive(unix.NFT_MSG_GETSETELEM, 0, uint8(table.Family), request.B, func(m nfnetlink.Message) error {
			seen++
			return visitCounts(m.Attributes(), shape, visit)
		})
		switch {
		case err == nil:
			keys = keys[len(some):]
		case errors.Is(err, unix.ENOENT): // of the element behind those that were seen
			keys = keys[min(seen+1, len(some)):]
		default:
			return fmt.Errorf("read counters of %s %s: %w", table, set.Name, err)
		}
	}
	return nil
}

// AllCounts visits all elements of the set or map that have a counter, in no order. While others
// change the table it may leave out some elements or visit some twice. A missing table or set has
// no elements. The time of a dump grows faster than the number of elements: for each datagram of 32
// KiB the kernel walks from the start of the set to its place.
func (c *Conn) AllCounts(table nft.TableID, set *nft.Set, visit func(Count)) error {
	c.counts.Lock()
	defer c.counts.Unlock()
	shape := shapeOf(set, table.Family)
	var all []Count
	err := c.dumpCounts(unix.NFT_MSG_GETSETELEM, table.Family, elementsOf(table, set).B, func() { all = nil },
		func(attrs nfnetlink.Attributes) error {
			return visitCounts(attrs, shape, func(n Count) { all = append(all, n) })
		})
	if err != nil {
		return fmt.Errorf("read counters of %s %s: %w", table, set.Name, err)
	}
	for _, n := range all {
		visit(n)
	}
	return nil
}

// visitCounts visits the elements of one message that have a counter.
func visitCounts(attrs nfnetlink.Attributes, shape setShape, visit func(Count)) error {
	for _, e := range attrs.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS).All() {
		packets, ok := counted(e.Get(unix.NFTA_SET_ELEM_EXPR))
		if !ok {
			continue
		}
		key, ok := paddedValue(e.Get(unix.NFTA_SET_ELEM_KEY), shape.keyKernel, shape.key)
		if !ok {
			return errOtherShape
		}
		n := Count{Key: key, Packets: packets}
		if shape.data > 0 {
			if n.Data, ok = paddedValue(e.Get(unix.NFTA_SET_ELEM_DATA), shape.dataKernel, shape.data); !ok {
				return errOtherShape
			}
		}
		visit(n)
	}
	return nil
}
