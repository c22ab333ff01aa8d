package kernel

import (
	"encoding/binary"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// LongBatch is the number of messages from which on Apply makes a transaction before a batch.
const LongBatch = longBatch

// HideOffsets makes the kernel answer like one that reports no offsets.
func (c *Conn) HideOffsets() error {
	return c.writer.Use(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 0) })
}

// HideDestroy makes the kernel answer Sweep like one that cannot destroy elements.
func (c *Conn) HideDestroy() { c.destroy = 250 }

// HideOwnership makes tables as on kernels without ownership (before 6.9).
func (c *Conn) HideOwnership() { c.withoutOwner = true }

// LookUpFrom makes Read look up sets of n elements and more by their keys.
func (c *Conn) LookUpFrom(n int) { c.lookUpFrom = n }

// CountDumps counts the dumps of elements that Read asks for from now on.
func (c *Conn) CountDumps(n *int) {
	c.reader.Socket.Calls = sending{c.reader.Socket.Calls, func(buffers [][]byte, send func() error) error {
		for m := range nfnetlink.Messages(slices.Concat(buffers...)) {
			if m.Kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM && m.Flags&unix.NLM_F_DUMP != 0 {
				*n++
			}
		}
		return send()
	}}
}

// LimitSend makes the kernel refuse datagrams of more bytes, like one that has no memory
// for them.
func (c *Conn) LimitSend(most int, errno unix.Errno) {
	c.writer.Calls = sending{c.writer.Calls, func(buffers [][]byte, send func() error) error {
		n := 0
		for _, p := range buffers {
			n += len(p)
		}
		if n > most {
			return errno
		}
		return send()
	}}
}

// AroundSend lets the function make each system call that sends a batch. The thread stays
// the same meanwhile.
func (c *Conn) AroundSend(around func(call func())) {
	c.writer.Calls = sending{nfnetlink.Kernel{}, func(_ [][]byte, send func() error) (err error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		around(func() { err = send() })
		return err
	}}
}

// sending is system calls with others in place of Send.
type sending struct {
	nfnetlink.Syscalls
	around func(buffers [][]byte, send func() error) error
}

func (s sending) Send(fd int, buffers [][]byte) error {
	return s.around(buffers, func() error { return s.Syscalls.Send(fd, buffers) })
}

// Cause is the cause of an errno: "part", "shortage" or "others".
func Cause(errno unix.Errno) string {
	return map[cause]string{ofPart: "part", ofShortage: "shortage", ofOthers: "others"}[causeOf(errno)]
}

// Remember adds entries to a dynamic map as rules would. An Expires of 0 stands for the
// whole time-out.
func (c *Conn) Remember(table nft.TableID, set *nft.Set, entries []Entry) error {
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	for chunk := range slices.Chunk(entries, sweepBatch) {
		begin := c.seq + 1
		c.encoder.reset(begin+1, nil, false)
		at := c.encoder.beginSpan(0, 0, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, table)
		c.encoder.Text(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
		list := c.encoder.BeginNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for _, entry := range chunk {
			e := c.encoder.BeginNest(unix.NFTA_LIST_ELEM)
			for kind, v := range map[uint16]nft.Value{unix.NFTA_SET_ELEM_KEY: entry.Key, unix.NFTA_SET_ELEM_DATA: entry.Data} {
				value := c.encoder.BeginNest(kind)
				c.encoder.Raw(unix.NFTA_DATA_VALUE, string(v))
				c.encoder.EndNest(value)
			}
			for kind, d := range map[uint16]time.Duration{unix.NFTA_SET_ELEM_TIMEOUT: entry.Timeout,
				unix.NFTA_SET_ELEM_EXPIRATION: entry.Expires} {
				if d > 0 {
					c.encoder.Bytes(kind, binary.BigEndian.AppendUint64(nil, uint64(d.Milliseconds())))
				}
			}
			c.encoder.EndNest(e)
		}
		c.encoder.EndNest(list)
		c.encoder.EndMessage(at)
		c.seq = begin + 2
		answers, err := c.commitMessages(begin, c.encoder.B)
		if err != nil {
			return err
		}
		if len(answers) > 0 {
			return c.batchError(nft.Batch{Ops: []nft.Op{nft.AddTable{Table: table}}}, answers, false)
		}
	}
	return nil
}

// RecognisePadded encodes a rule as a kernel for riscv64 dumps it, with padding before numbers of 64 bits, and returns
// what is recognised, and how much padding there was.
func RecognisePadded(rule nft.Rule, f nft.Family) (recognised nft.Rule, paddings int, err error) {
	var e encoder
	if err := e.addRule(rule, f); err != nil {
		return nil, 0, err
	}
	attrs := nfnetlink.Attributes(e.B)
	kinds := map[string]uint16{"dynset": unix.NFTA_DYNSET_PAD, "limit": unix.NFTA_LIMIT_PAD,
		"counter": unix.NFTA_COUNTER_PAD}
	var padded nfnetlink.Encoder
	for _, expression := range attrs.Get(unix.NFTA_RULE_EXPRESSIONS).All() {
		name, data := expression.Text(unix.NFTA_EXPR_NAME), expression.Get(unix.NFTA_EXPR_DATA)
		list := padded.BeginNest(unix.NFTA_LIST_ELEM)
		padded.Text(unix.NFTA_EXPR_NAME, name)
		nest := padded.BeginNest(unix.NFTA_EXPR_DATA)
		for len(data) >= nfnetlink.AttributeAt {
			size := int(binary.NativeEndian.Uint16(data))
			if kind := kinds[name]; kind != 0 && size == nfnetlink.AttributeAt+8 {
				padded.Bytes(kind, nil)
				paddings++
			}
			padded.B = append(padded.B, data[:nfnetlink.Align(size)]...)
			data = data[nfnetlink.Align(size):]
		}
		padded.EndNest(nest)
		padded.EndNest(list)
	}
	return recogniseRule(rawRule{expressions: padded.B, userdata: attrs.Get(unix.NFTA_RULE_USERDATA)}, f), paddings, nil
}
