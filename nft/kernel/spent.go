package kernel

import (
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// spent is the times that the steps of an Apply took.
type spent struct{ encode, commit time.Duration }

// Spent returns how long the last Apply encoded messages, and how long the kernel executed them.
// Both include further attempts. The rest of the Apply went into looking up the tables that the
// batch adds. The Apply of an empty batch does not count.
func (c *Conn) Spent() (encode, commit time.Duration) {
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	return c.spent.encode, c.spent.commit
}

// Encode returns the batch as one datagram, with the messages that begin and end a
// transaction. The end asks for an acknowledgement. Tables that the batch adds have no
// owner. Encode is for benchmarks of the kernel alone.
func Encode(b nft.Batch) ([]byte, error) {
	var messages batchEncoder
	messages.reset(1, nil, false)
	if err := messages.addBatch(b); err != nil {
		return nil, err
	}
	var all nfnetlink.Encoder
	all.EndMessage(all.BeginBatch(0))
	all.B = append(all.B, messages.B...)
	all.EndBatch(unix.NLM_F_ACK, uint32(len(messages.spans)+1))
	return all.B, nil
}
