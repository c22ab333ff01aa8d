package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// Forget deletes all entries of a dynamic map in one transaction, without a dump: 30 ms of
// CPU time for 65,000 entries, of which Sweep takes ten times as much (Linux 6.18). A missing
// table or map is no error. Generation counts the transaction as another process's, since
// the kernel makes none if there are no entries.
func (c *Conn) Forget(table nft.TableID, set *nft.Set) error {
	if !set.Dynamic {
		return fmt.Errorf("empty map %s %s: it is not dynamic", table, set.Name)
	}
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	begin := c.seq + 1
	c.encoder.reset(begin+1, nil, false)
	c.encoder.addMessage(0, unix.NFT_MSG_DELSETELEM, table, unix.NFTA_SET_ELEM_LIST_SET, set.Name)
	c.seq = begin + 2
	answers, err := c.commitMessages(begin, c.encoder.B)
	if err == nil && len(answers) > 0 {
		err = c.batchError(nft.Batch{Ops: []nft.Op{nft.DeleteElements{Table: table, Set: set}}}, answers, false)
	}
	if refused := (*BatchError)(nil); errors.As(err, &refused) && refused.allAre(unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("empty map %s %s: %w", table, set.Name, err)
	}
	return nil
}
