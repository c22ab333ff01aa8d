package kernel

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// longBatch is the number of messages from which on a batch is worth a transaction before it.
// That transaction takes 28 us on Linux 6.18, less than 16 messages with rules.
const longBatch = 16

// leaveValidation makes a transaction that changes nothing, if the batch could suffer from a refusal before it.
//
// A kernel that finds out only at the end of a transaction that chains lead to each other in a loop, or that a rule is
// behind the wrong hook, goes through the transaction once more, and validates the whole table after each message with
// rules or elements, to know which to blame. Linux before commit 6f93616a7323 (end of 2025) stays in that mode until
// the next transaction that changes something, and Linux 5.10 and 6.1 do so for all tables of the network namespace,
// whoever was refused. A batch that comes then pays for each of its messages, and must be right after each of them. A
// table that a transaction adds and deletes is enough to leave the mode, and no packet meets it. A refusal of that
// transaction is no reason to give up the batch, which has its own answer.
func (c *Conn) leaveValidation(b nft.Batch) {
	if !c.refused && validated(b) < longBatch {
		return
	}
	start := time.Now()
	defer func() { c.spent.commit += time.Since(start) }()
	begin := c.seq + 1
	e := batchEncoder{seq: begin + 1}
	table := nft.TableID{Family: nft.IPv4, Name: fmt.Sprintf("nftproxy-validation-%d", os.Getpid())}
	// NLM_F_EXCL leaves a table of that name alone, which is not ours.
	e.EndMessage(e.beginSpan(0, 0, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, table))
	e.addMessage(0, unix.NFT_MSG_DELTABLE, table, 0, "")
	c.seq = begin + uint32(len(e.spans)) + 1
	if answers, err := c.commitMessages(begin, e.B); err == nil && len(answers) == 0 {
		c.uncounted++
		c.refused = false
	}
}

// validated is how many messages of the batch a kernel in that mode validates: those with rules, and
// those that add elements.
func validated(b nft.Batch) (messages int) {
	for _, op := range b.Ops {
		switch op := op.(type) {
		case nft.AddRules:
			messages += len(op.Chain.Rules)
		case nft.AddElements:
			messages += 1 + len(op.Elements)*elementSize/maxElementList
		}
	}
	return messages
}

// ofValidation says that the answer may come from a kernel that validates each message: chains are too deep or
// lead to each other in a loop, or a statement is not for the hook. Whatever else a kernel refuses, it
// refuses before it validates.
func ofValidation(a nfnetlink.Answer) bool {
	switch a.Errno {
	case unix.EMLINK, unix.ELOOP, unix.EOPNOTSUPP:
		return true
	}
	return false
}
