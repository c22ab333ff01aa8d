package kernel

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// maxElementList is the length, in bytes, from which on a list of elements continues in
// another message. An attribute's length has 16 bits. One more element still fits: it has
// at most a verdict's chain name (255 bytes) and a comment.
const maxElementList = 1<<16 - 2048

// elementSize is about the length, in bytes, of an element: 60 to 80 in IPv4, without comment.
const elementSize = 80

// tableOwner makes the creator of a table its owner as long as the socket lives. tablePersist
// lets the table stay after that (Linux 6.9).
const (
	tableOwner   = 0x2
	tablePersist = 0x4
	ownedTable   = tableOwner | tablePersist
)

// tableDormant detaches a table's chains from their hooks.
const tableDormant = unix.NFT_TABLE_F_DORMANT

// span says where one message of an encoded batch starts, and what it is about.
type span struct {
	// at is the offset in the encoder's buffer, in bytes.
	at int
	// op is the index of the operation in the batch.
	op int
	// first is the index of the message's first element or rule.
	first int
}

// encoder writes what nf_tables reads.
type encoder struct{ nfnetlink.Encoder }

// batchEncoder writes a batch's messages, without those that begin and end it.
type batchEncoder struct {
	encoder
	spans []span
	// flags of the tables that the batch adds, by the operation's index.
	flags map[int]uint32
	// single makes each element a message of its own.
	single bool
	// seq is the sequence number of the first message; the others follow.
	seq uint32
	// sets is how many sets were declared.
	sets uint32
}

// reset starts a new batch in the same memory.
func (e *batchEncoder) reset(seq uint32, flags map[int]uint32, single bool) {
	*e = batchEncoder{encoder: encoder{nfnetlink.Encoder{B: e.B[:0]}}, spans: e.spans[:0], seq: seq, flags: flags,
		single: single}
}

// release frees the memory of an unusually large batch: 10 MB for the first program with 44,000 Services.
func (e *batchEncoder) release() {
	const most = 1 << 20
	if cap(e.B) > most {
		e.B, e.spans = nil, nil
	}
}

// messagesBetween is the messages from first up to end, without end.
func (e *batchEncoder) messagesBetween(first, end int) []byte {
	if end == len(e.spans) {
		return e.B[e.spans[first].at:]
	}
	return e.B[e.spans[first].at:e.spans[end].at]
}

// endOfFitting is the end of as many messages from first on as fit the limit together, in
// bytes. It is one message at least.
func (e *batchEncoder) endOfFitting(first, limit int) (end int) {
	more := sort.Search(len(e.spans)-first-1, func(i int) bool {
		return len(e.messagesBetween(first, first+i+2)) > limit
	})
	return first + 1 + more
}

func (e *batchEncoder) addBatch(b nft.Batch) error {
	elements := 0
	for _, op := range b.Ops {
		elements += len(nft.ElementsOf(op))
	}
	e.B = slices.Grow(e.B, elements*elementSize)
	for i, op := range b.Ops {
		if err := e.addOp(i, op); err != nil {
			var refused *BatchError
			if errors.As(err, &refused) {
				return err
			}
			return fmt.Errorf("encode %s: %w", summary(op), err)
		}
	}
	return nil
}

// beginSpan starts a message. The first attribute has the table's name, whatever the kind.
func (e *batchEncoder) beginSpan(op, first int, kind, flags uint16, table nft.TableID) int {
	e.spans = append(e.spans, span{len(e.B), op, first})
	at := e.BeginMessage(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, e.seq+uint32(len(e.spans)-1), uint8(table.Family))
	e.Text(unix.NFTA_TABLE_NAME, table.Name)
	return at
}

// addMessage adds a message of one attribute beside the table's name, or of none.
func (e *batchEncoder) addMessage(op int, kind uint16, table nft.TableID, attribute uint16, name string) {
	at := e.beginSpan(op, 0, kind, 0, table)
	if attribute != 0 {
		e.Text(attribute, name)
	}
	e.EndMessage(at)
}

func (e *batchEncoder) addOp(i int, op nft.Op) error {
	switch op := op.(type) {
	case nft.AddTable:
		at := e.beginSpan(i, 0, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, op.Table)
		if flags, given := e.flags[i]; given {
			e.Uint32(unix.NFTA_TABLE_FLAGS, flags)
		}
		e.Bytes(attrTableUserdata, tableUserdata()) // an existing table keeps its own
		e.EndMessage(at)
	case nft.DeleteTable:
		e.addMessage(i, unix.NFT_MSG_DELTABLE, op.Table, 0, "")
	case nft.AddSet:
		return e.addSet(i, op)
	case nft.DeleteSet:
		e.addMessage(i, unix.NFT_MSG_DELSET, op.Table, unix.NFTA_SET_NAME, op.Set)
	case nft.AddTimeout:
		return e.addTimeout(i, op)
	case nft.AddChain:
		e.addChain(i, op)
	case nft.FlushTable:
		e.addMessage(i, unix.NFT_MSG_DELRULE, op.Table, 0, "")
	case nft.FlushChain:
		e.addMessage(i, unix.NFT_MSG_DELRULE, op.Table, unix.NFTA_RULE_CHAIN, op.Chain)
	case nft.DeleteChain:
		e.addMessage(i, unix.NFT_MSG_DELCHAIN, op.Table, unix.NFTA_CHAIN_NAME, op.Chain)
	case nft.AddRules:
		return e.addRules(i, op)
	case nft.AddElements:
		return e.addElements(i, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, op, op.Set)
	case nft.DeleteElements:
		return e.addElements(i, unix.NFT_MSG_DELSETELEM, 0, op, op.Set)
	default:
		return fmt.Errorf("unknown operation %T", op)
	}
	return nil
}

// addSet and addChain fail where the object is there already: then the kernel has other
// tables than the plan was made for.
func (e *batchEncoder) addSet(i int, op nft.AddSet) error {
	if err := op.Set.Check(); err != nil {
		return err
	}
	at := e.beginSpan(i, 0, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, op.Table)
	e.Text(unix.NFTA_SET_NAME, op.Set.Name)
	e.sets++
	e.Uint32(unix.NFTA_SET_ID, e.sets) // the kernel demands it, though the name would do
	e.addDeclaration(op.Set, op.Table.Family)
	e.EndMessage(at)
	return nil
}

func (e *batchEncoder) addChain(i int, op nft.AddChain) {
	at := e.beginSpan(i, 0, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, op.Table)
	e.Text(unix.NFTA_CHAIN_NAME, op.Chain.Name)
	if h := op.Chain.Hook; h != nil {
		hook := e.BeginNest(unix.NFTA_CHAIN_HOOK)
		e.Uint32(unix.NFTA_HOOK_HOOKNUM, uint32(h.Name))
		e.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
		e.EndNest(hook)
		e.Text(unix.NFTA_CHAIN_TYPE, natChain)
	}
	e.EndMessage(at)
}

// natChain is the type of all base chains.
const natChain = "nat"

func (e *batchEncoder) addRules(i int, op nft.AddRules) error {
	for j, r := range op.Chain.Rules {
		at := e.beginSpan(i, j, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, op.Table)
		e.Text(unix.NFTA_RULE_CHAIN, op.Chain.Name)
		if err := e.addRule(r, op.Table.Family); err != nil {
			return err
		}
		e.EndMessage(at)
	}
	return nil
}

// addElements adds messages for the operation's elements, which are of the set. Where the set cannot hold one, the
// error is the one that a kernel would return, so callers treat both alike.
func (e *batchEncoder) addElements(i int, kind, flags uint16, op nft.Op, set *nft.Set) error {
	table, elements := nft.TableOf(op), nft.ElementsOf(op)
	shape := shapeOf(set, table.Family)
	for next := 0; next < len(elements); {
		at := e.beginSpan(i, next, kind, flags, table)
		e.Text(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
		list := e.BeginNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for full := false; next < len(elements) && !full; full = e.single || len(e.B)-list >= maxElementList {
			if err := e.addElement(&elements[next].Element, shape, kind != unix.NFT_MSG_NEWSETELEM); err != nil {
				return &BatchError{Errors: []OpError{{Op: withElements(op, elements[next:next+1]), Element: &elements[next],
					Table: table, Errno: unix.EINVAL, Hint: err.Error()}}}
			}
			next++
		}
		e.EndNest(list)
		e.EndMessage(at)
	}
	return nil
}

// withElements is the operation, which changes elements, with only these.
func withElements(op nft.Op, elements []nft.OwnedElement) nft.Op {
	switch op := op.(type) {
	case nft.AddElements:
		op.Elements = elements
		return op
	case nft.DeleteElements:
		op.Elements = elements
		return op
	}
	return op
}

// setShape says which form a set's elements have. Lengths are in bytes: those of a Value,
// and those in the kernel.
type setShape struct {
	verdicts, interval bool
	// paired says that an interval is two elements in the kernel.
	paired                           bool
	key, keyKernel, data, dataKernel int
}

func shapeOf(s *nft.Set, family nft.Family) setShape {
	return setShape{
		verdicts: s.Verdicts, interval: s.Interval, paired: s.Interval && len(s.Key) == 1,
		key: s.Key.Len(family), keyKernel: kernelLen(s.Key, family),
		data: s.Data.Len(family), dataKernel: kernelLen(s.Data, family),
	}
}

// attrElementKeyEnd is NFTA_SET_ELEM_KEY_END, which x/sys/unix lacks.
const attrElementKeyEnd = 10

func (e *encoder) addElement(el *nft.Element, shape setShape, keyOnly bool) error {
	if len(el.Key) != shape.key {
		return fmt.Errorf("key of %d bytes, not %d", len(el.Key), shape.key)
	}
	lastKey := 0
	if shape.interval {
		lastKey = shape.key
	}
	if len(el.KeyEnd) != lastKey {
		return fmt.Errorf("last key of %d bytes, not %d", len(el.KeyEnd), lastKey)
	}
	var end []byte
	open := false
	if shape.paired {
		end, open = keyAfter(el.KeyEnd, shape.keyKernel)
	}
	at := e.BeginNest(unix.NFTA_LIST_ELEM)
	key := e.BeginNest(unix.NFTA_SET_ELEM_KEY)
	e.Raw(unix.NFTA_DATA_VALUE, string(el.Key[:shape.keyKernel]))
	e.EndNest(key)
	if shape.interval && !shape.paired {
		last := e.BeginNest(attrElementKeyEnd)
		e.Raw(unix.NFTA_DATA_VALUE, string(el.KeyEnd[:shape.keyKernel]))
		e.EndNest(last)
	}
	if !keyOnly {
		if err := e.addElementData(el, shape); err != nil {
			return err
		}
		e.addElementUserdata(el.Comment, open)
	}
	e.EndNest(at)
	if shape.paired && !open {
		e.addIntervalEnd(end)
	}
	return nil
}

func (e *encoder) addElementData(el *nft.Element, shape setShape) error {
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
		data := e.BeginNest(unix.NFTA_SET_ELEM_DATA)
		if shape.verdicts {
			e.addVerdict(el.Verdict)
		} else {
			e.Raw(unix.NFTA_DATA_VALUE, string(el.Data[:shape.dataKernel]))
		}
		e.EndNest(data)
	}
	return nil
}

func (e *encoder) addVerdict(v nft.Verdict) {
	at := e.BeginNest(unix.NFTA_DATA_VERDICT)
	e.Uint32(unix.NFTA_VERDICT_CODE, uint32(verdictCode(v)))
	if v.Chain != "" {
		e.Text(unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	e.EndNest(at)
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
