package kernel

import (
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// spent is where the time of an Apply went.
type spent struct{ encode, commit time.Duration }

// Spent returns how much of the last Apply, second tries included, went into
// writing down the messages, and how much into the kernel's taking them. What
// is left is looks at tables that the batch adds. The Apply of an empty batch
// does not count.
func (c *Conn) Spent() (encode, commit time.Duration) {
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	return c.spent.encode, c.spent.commit
}

// Encode returns the batch as one datagram, with the messages that begin and end
// a transaction, of which the last asks for an acknowledgement. Tables that it
// adds have no owner. It is for measuring what the kernel itself takes.
func Encode(b nft.Batch) ([]byte, error) {
	var messages batchEncoder
	messages.reset(1, nil, false)
	if err := messages.batch(b); err != nil {
		return nil, err
	}
	var all encoder
	all.fence(unix.NFNL_MSG_BATCH_BEGIN, 0, 0)
	all.b = append(all.b, messages.b...)
	all.fence(unix.NFNL_MSG_BATCH_END, unix.NLM_F_ACK, uint32(len(messages.spans)+1))
	return all.b, nil
}
