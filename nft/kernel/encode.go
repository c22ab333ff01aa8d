package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// maxElementList is where a list of elements goes on in another message. An
// attribute's length has 16 bits; one more element, which has at most a
// verdict's chain name (255 bytes) and a comment, still fits.
const maxElementList = 1<<16 - 2048

// The table flags that make a table its creator's own for as long as the
// socket lives, and let it stay after that (Linux 6.9).
const (
	tableOwner   = 0x2
	tablePersist = 0x4
	ownedTable   = tableOwner | tablePersist
)

// tableDormant takes a table's chains off their hooks.
const tableDormant = unix.NFT_TABLE_F_DORMANT

// span is where one message of an encoded batch starts, and what it is about.
type span struct {
	at int
	// op is the index of the operation in the batch.
	op int
	// first is the index of the message's first element or rule.
	first int
}

// batchEncoder writes a batch's messages, without those that begin and end it.
type batchEncoder struct {
	encoder
	spans []span
	// flags of the tables that the batch adds, by the operation's index.
	flags map[int]uint32
	// single makes each element a message of its own.
	single bool
	// seq is the sequence number of the first message; the others follow.
	seq  uint32
	sets uint32
}

// reset starts a new batch in the same memory.
func (e *batchEncoder) reset(seq uint32, flags map[int]uint32, single bool) {
	// What an unusually large batch took is given back.
	const keep = 1 << 20
	if cap(e.b) > keep {
		e.b = nil
	}
	*e = batchEncoder{encoder: encoder{e.b[:0]}, spans: e.spans[:0], seq: seq, flags: flags, single: single}
}

func (e *batchEncoder) batch(b nft.Batch) error {
	// An element takes 60 to 80 bytes in IPv4, without comment.
	const elementSize = 80
	elements := 0
	for _, op := range b.Ops {
		switch op := op.(type) {
		case nft.AddElements:
			elements += len(op.Elements)
		case nft.DeleteElements:
			elements += len(op.Elements)
		}
	}
	e.b = slices.Grow(e.b, elements*elementSize)
	for i, op := range b.Ops {
		if err := e.op(i, op); err != nil {
			return unfit(op, err)
		}
	}
	return nil
}

func (e *batchEncoder) begin(op, first int, kind, flags uint16, family nft.Family) int {
	e.spans = append(e.spans, span{len(e.b), op, first})
	return e.message(kind, flags, e.seq+uint32(len(e.spans)-1), family)
}

func (e *batchEncoder) op(i int, op nft.Op) error {
	switch op := op.(type) {
	case nft.AddTable:
		at := e.begin(i, 0, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, op.Table.Family)
		e.string(unix.NFTA_TABLE_NAME, op.Table.Name)
		if flags, given := e.flags[i]; given {
			e.uint32(unix.NFTA_TABLE_FLAGS, flags)
		}
		e.end(at)
	case nft.DeleteTable:
		at := e.begin(i, 0, unix.NFT_MSG_DELTABLE, 0, op.Table.Family)
		e.string(unix.NFTA_TABLE_NAME, op.Table.Name)
		e.end(at)
	case nft.AddSet:
		return e.addSet(i, op)
	case nft.DeleteSet:
		at := e.begin(i, 0, unix.NFT_MSG_DELSET, 0, op.Table.Family)
		e.string(unix.NFTA_SET_TABLE, op.Table.Name)
		e.string(unix.NFTA_SET_NAME, op.Set)
		e.end(at)
	case nft.AddChain:
		e.addChain(i, op)
	case nft.FlushChain:
		at := e.begin(i, 0, unix.NFT_MSG_DELRULE, 0, op.Table.Family)
		e.string(unix.NFTA_RULE_TABLE, op.Table.Name)
		e.string(unix.NFTA_RULE_CHAIN, op.Chain)
		e.end(at)
	case nft.DeleteChain:
		at := e.begin(i, 0, unix.NFT_MSG_DELCHAIN, 0, op.Table.Family)
		e.string(unix.NFTA_CHAIN_TABLE, op.Table.Name)
		e.string(unix.NFTA_CHAIN_NAME, op.Chain)
		e.end(at)
	case nft.AddRules:
		return e.addRules(i, op)
	case nft.AddElements:
		return e.elements(i, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, op.Table, op.Set, op.Elements)
	case nft.DeleteElements:
		return e.elements(i, unix.NFT_MSG_DELSETELEM, 0, op.Table, op.Set, op.Elements)
	default:
		return fmt.Errorf("unknown operation %T", op)
	}
	return nil
}

// addSet and addChain are exclusive: an object that is there already means that
// the plan was made against something else than the kernel has.
func (e *batchEncoder) addSet(i int, op nft.AddSet) error {
	if err := op.Set.Check(); err != nil {
		return err
	}
	at := e.begin(i, 0, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, op.Table.Family)
	e.string(unix.NFTA_SET_TABLE, op.Table.Name)
	e.string(unix.NFTA_SET_NAME, op.Set.Name)
	e.sets++
	e.uint32(unix.NFTA_SET_ID, e.sets) // demanded, though names do
	e.declaration(op.Set, op.Table.Family)
	e.end(at)
	return nil
}

func (e *batchEncoder) addChain(i int, op nft.AddChain) {
	at := e.begin(i, 0, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, op.Table.Family)
	e.string(unix.NFTA_CHAIN_TABLE, op.Table.Name)
	e.string(unix.NFTA_CHAIN_NAME, op.Chain.Name)
	if h := op.Chain.Hook; h != nil {
		hook := e.nest(unix.NFTA_CHAIN_HOOK)
		e.uint32(unix.NFTA_HOOK_HOOKNUM, uint32(h.Name))
		e.uint32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
		e.close(hook)
		e.string(unix.NFTA_CHAIN_TYPE, natChain)
	}
	e.end(at)
}

// natChain is the type of all base chains.
const natChain = "nat"

func (e *batchEncoder) addRules(i int, op nft.AddRules) error {
	for j, r := range op.Chain.Rules {
		at := e.begin(i, j, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, op.Table.Family)
		e.string(unix.NFTA_RULE_TABLE, op.Table.Name)
		e.string(unix.NFTA_RULE_CHAIN, op.Chain.Name)
		if err := e.rule(r, op.Table.Family); err != nil {
			return err
		}
		e.end(at)
	}
	return nil
}

func (e *batchEncoder) elements(i int, kind, flags uint16, table nft.TableID, set *nft.Set, elements []nft.OwnedElement) error {
	shape := shapeOf(set, table.Family)
	for next := 0; next < len(elements); {
		at := e.begin(i, next, kind, flags, table.Family)
		e.string(unix.NFTA_SET_ELEM_LIST_TABLE, table.Name)
		e.string(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
		list := e.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for full := false; next < len(elements) && !full; full = e.single || len(e.b)-list >= maxElementList {
			if err := e.element(&elements[next].Element, shape, kind != unix.NFT_MSG_NEWSETELEM); err != nil {
				return &misfit{next, err}
			}
			next++
		}
		e.close(list)
		e.end(at)
	}
	return nil
}

// misfit is an element that its set cannot hold, by its place in the operation.
type misfit struct {
	at  int
	err error
}

func (m *misfit) Error() string { return fmt.Sprintf("element %d: %v", m.at, m.err) }

// unfit is the error for an operation that has no encoding. An element's is
// what the kernel would say of it, so that it is dealt with in the same way.
func unfit(op nft.Op, err error) error {
	var m *misfit
	if !errors.As(err, &m) {
		return fmt.Errorf("encode %s: %w", summary(op), err)
	}
	refusal := OpError{Table: nft.TableOf(op), Errno: unix.EINVAL, Hint: m.err.Error()}
	switch op := op.(type) {
	case nft.AddElements:
		op.Elements = op.Elements[m.at : m.at+1]
		refusal.Op, refusal.Element = op, &op.Elements[0]
	case nft.DeleteElements:
		op.Elements = op.Elements[m.at : m.at+1]
		refusal.Op, refusal.Element = op, &op.Elements[0]
	}
	return &BatchError{Errors: []OpError{refusal}}
}

// setShape is what an element of a set has to look like: lengths in bytes of a
// Value and of what the kernel has of it.
type setShape struct {
	verdicts, interval               bool
	key, keyKernel, data, dataKernel int
}

func shapeOf(s *nft.Set, family nft.Family) setShape {
	return setShape{
		verdicts: s.Verdicts, interval: s.Interval,
		key: s.Key.Len(family), keyKernel: kernelLen(s.Key, family),
		data: s.Data.Len(family), dataKernel: kernelLen(s.Data, family),
	}
}

// keyEnd is the length of an element's last key.
func (s setShape) keyEnd() int {
	if s.interval {
		return s.key
	}
	return 0
}

// attrElementKeyEnd is NFTA_SET_ELEM_KEY_END, which x/sys/unix lacks.
const attrElementKeyEnd = 10

func (e *encoder) element(el *nft.Element, shape setShape, keyOnly bool) error {
	if len(el.Key) != shape.key {
		return fmt.Errorf("key of %d bytes, not %d", len(el.Key), shape.key)
	}
	if end := shape.keyEnd(); len(el.KeyEnd) != end {
		return fmt.Errorf("last key of %d bytes, not %d", len(el.KeyEnd), end)
	}
	at := e.nest(unix.NFTA_LIST_ELEM)
	key := e.nest(unix.NFTA_SET_ELEM_KEY)
	e.raw(unix.NFTA_DATA_VALUE, string(el.Key[:shape.keyKernel]))
	e.close(key)
	if shape.interval {
		last := e.nest(attrElementKeyEnd)
		e.raw(unix.NFTA_DATA_VALUE, string(el.KeyEnd[:shape.keyKernel]))
		e.close(last)
	}
	if !keyOnly {
		if err := e.elementData(el, shape); err != nil {
			return err
		}
	}
	e.close(at)
	return nil
}

func (e *encoder) elementData(el *nft.Element, shape setShape) error {
	switch {
	case len(el.Data) != shape.data:
		return fmt.Errorf("data of %d bytes, not %d", len(el.Data), shape.data)
	case shape.verdicts != (el.Verdict.Code != 0):
		return fmt.Errorf("verdict %q", el.Verdict)
	case len(el.Comment) > nft.MaxComment:
		return fmt.Errorf("comment of %d bytes: at most %d", len(el.Comment), nft.MaxComment)
	case len(el.Verdict.Chain) >= unix.NFT_CHAIN_MAXNAMELEN:
		return fmt.Errorf("chain name of %d bytes: at most %d", len(el.Verdict.Chain), unix.NFT_CHAIN_MAXNAMELEN-1)
	}
	if shape.verdicts || shape.data > 0 {
		data := e.nest(unix.NFTA_SET_ELEM_DATA)
		if shape.verdicts {
			e.verdict(el.Verdict)
		} else {
			e.raw(unix.NFTA_DATA_VALUE, string(el.Data[:shape.dataKernel]))
		}
		e.close(data)
	}
	if el.Comment != "" {
		// As userdata.AppendString, without its copies.
		e.attrHeader(unix.NFTA_SET_ELEM_USERDATA, len(el.Comment)+3)
		e.b = append(e.b, byte(userdata.NFTNL_UDATA_SET_ELEM_COMMENT), byte(len(el.Comment)+1))
		e.b = append(append(e.b, el.Comment...), 0)
		e.pad()
	}
	return nil
}

func (e *encoder) verdict(v nft.Verdict) {
	at := e.nest(unix.NFTA_DATA_VERDICT)
	e.uint32(unix.NFTA_VERDICT_CODE, uint32(verdictCode(v)))
	if v.Chain != "" {
		e.string(unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	e.close(at)
}

// summary is an operation on one line, for errors.
func summary(op nft.Op) string {
	switch op := op.(type) {
	case nft.AddElements:
		if n := len(op.Elements); n != 1 {
			return fmt.Sprintf("add element %s %s (%d elements)", op.Table, op.Set.Name, n)
		}
	case nft.DeleteElements:
		if n := len(op.Elements); n != 1 {
			return fmt.Sprintf("delete element %s %s (%d elements)", op.Table, op.Set.Name, n)
		}
	}
	line := strings.Join(strings.Fields(op.Text()), " ")
	return strings.Replace(line, ", }", " }", 1)
}
