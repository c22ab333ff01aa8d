package kernel

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// HideOffsets makes the kernel answer as those do that know no offsets.
func (c *Conn) HideOffsets() error {
	return c.writer.conn.SetOption(netlink.ExtendedAcknowledge, false)
}

// HideDestroy makes the kernel answer to Sweep as those do that cannot destroy
// elements.
func (c *Conn) HideDestroy() { c.destroy = 250 }

// HideOwnership makes tables as on kernels that have no owned ones (before 6.9).
func (c *Conn) HideOwnership() { c.withoutOwner = true }

// Remember adds entries to a dynamic map as rules would. Expires may be 0, for
// all of the time-out.
func (c *Conn) Remember(table nft.TableID, set *nft.Set, entries []Entry) error {
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	for chunk := range slices.Chunk(entries, sweepBatch) {
		begin := c.seq + 1
		c.encoder.reset(begin+1, nil, false)
		at := c.encoder.begin(0, 0, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, table.Family)
		c.encoder.string(unix.NFTA_SET_ELEM_LIST_TABLE, table.Name)
		c.encoder.string(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
		list := c.encoder.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for _, entry := range chunk {
			e := c.encoder.nest(unix.NFTA_LIST_ELEM)
			for kind, v := range map[uint16]nft.Value{unix.NFTA_SET_ELEM_KEY: entry.Key, unix.NFTA_SET_ELEM_DATA: entry.Data} {
				value := c.encoder.nest(kind)
				c.encoder.raw(unix.NFTA_DATA_VALUE, string(v))
				c.encoder.close(value)
			}
			for kind, d := range map[uint16]time.Duration{unix.NFTA_SET_ELEM_TIMEOUT: entry.Timeout, unix.NFTA_SET_ELEM_EXPIRATION: entry.Expires} {
				if d > 0 {
					c.encoder.bytes(kind, binary.BigEndian.AppendUint64(nil, uint64(d.Milliseconds())))
				}
			}
			c.encoder.close(e)
		}
		c.encoder.close(list)
		c.encoder.end(at)
		c.seq = begin + 2
		answers, err := c.transact(begin, c.encoder.b)
		if err != nil {
			return err
		}
		if len(answers) > 0 {
			return c.batchError(nft.Batch{Ops: []nft.Op{nft.AddTable{Table: table}}}, answers, false)
		}
	}
	return nil
}
