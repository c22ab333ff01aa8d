package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// destroyElements is NFT_MSG_DESTROYSETELEM, which x/sys/unix lacks: a deletion for which a
// missing element is no error (Linux 6.3).
const destroyElements = 30

const (
	// sweepBatch is how many elements one transaction deletes at most. So many fit any send
	// buffer, and the kernel deletes them in about a millisecond.
	sweepBatch = 500
	// sweepPasses is how often one Sweep dumps the map at most.
	sweepPasses = 8
	// sweepOnce is the number of entries from which on Sweep dumps a map again only if a dump was visibly incomplete.
	// For each datagram of 32 KiB, the kernel searches its place from the start: a dump takes 7 ms for 10,000 entries,
	// 0.5 s for 100,000 and 3.8 to 4.9 s for 262,144 (BenchmarkSweep; Linux 6.18, two cores).
	sweepOnce = 50_000
)

// Sweep deletes the entries of a dynamic map that keep refuses. It returns how many it
// left and how many it deleted. An entry that expires meanwhile may count as either. A
// missing table or map is no error: then there is nothing to sweep.
//
// Apply waits for 500 deletions at most, not for dumps. A dump can miss entries while others come and go, so Sweep
// dumps the map again until it finds nothing more, at most eight times; a map of more than 50,000 entries only after a
// dump that was visibly incomplete, since that takes long. A caller that sweeps because endpoints have gone should
// sweep again a little later. If an entry expires and is learned again between the dump and its deletion, it is deleted
// too; its client is remembered at its next connection. keep must not call Learned or Sweep.
//
// When the context ends, Sweep returns an error that matches the context's. It looks at the context before each entry
// and before each 500 deletions.
func (c *Conn) Sweep(ctx context.Context, table nft.TableID, set *nft.Set,
	keep func(key, data nft.Value) bool) (left, swept int, err error) {
	if !set.Dynamic {
		return 0, 0, fmt.Errorf("sweep map %s %s: it is not dynamic", table, set.Name)
	}
	for pass, clean := 1, 0; pass <= sweepPasses && clean < 2; pass++ {
		var refused []nft.OwnedElement
		var complete bool
		left, refused, complete, err = c.findRefused(ctx, table, set, keep)
		if err != nil {
			return left, swept, err
		}
		for chunk := range slices.Chunk(refused, sweepBatch) {
			n, err := c.destroyEntries(ctx, nft.DeleteElements{Table: table, Set: set, Elements: chunk})
			swept += n
			if err != nil {
				return left, swept, fmt.Errorf("sweep map %s %s: %w", table, set.Name, err)
			}
		}
		switch {
		case complete && (len(refused) == 0 || left > sweepOnce):
			return left, swept, nil
		case len(refused) > 0:
			clean = 0
		default:
			clean++
		}
	}
	return left, swept, nil
}

// findRefused dumps a map. It counts the entries that keep accepts, and returns the others.
// For complete see dumpEntries.
func (c *Conn) findRefused(ctx context.Context, table nft.TableID, set *nft.Set,
	keep func(key, data nft.Value) bool) (kept int, refused []nft.OwnedElement, complete bool, err error) {
	if ctx.Err() != nil {
		return 0, nil, false, fmt.Errorf("dump map %s %s: %w", table, set.Name, ctx.Err())
	}
	complete, err = c.dumpEntries(table, set, func(e Entry) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case keep(e.Key, e.Data):
			kept++
		default:
			refused = append(refused, nft.OwnedElement{Element: nft.Element{Set: set.Name, Key: e.Key}})
		}
		return nil
	})
	return kept, refused, complete, err
}

// destroyEntries deletes elements, of which some may have gone. It returns how many it deleted, or how many it tried
// where the kernel does not say.
//
// NFT_MSG_DESTROYSETELEM may find no element, and then the kernel makes no transaction. So in a table that others can
// change too, it uses NFT_MSG_DELSETELEM: then it knows how often it has raised the generation itself.
func (c *Conn) destroyEntries(ctx context.Context, op nft.DeleteElements) (int, error) {
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	owned, err := c.Owned(op.Table)
	if err != nil {
		return 0, err
	}
	for len(op.Elements) > 0 {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		destroy := owned && !c.withoutDestroy
		err := c.destroyOnce(op, destroy)
		var refused *BatchError
		switch {
		case err == nil:
			if !destroy {
				c.uncounted++
			}
			return len(op.Elements), nil
		case !errors.As(err, &refused):
			return 0, err
		case destroy && refused.allAre(unix.EINVAL):
			c.withoutDestroy = true // a message that the kernel does not know
		case !refused.allAre(unix.ENOENT):
			return 0, err
		case destroy || refused.Errors[0].Element == nil:
			return 0, nil // no such table or map
		default:
			gone := map[nft.Value]bool{}
			for _, e := range refused.Errors {
				gone[e.Element.Key] = true
			}
			op.Elements = slices.DeleteFunc(op.Elements, func(e nft.OwnedElement) bool { return gone[e.Key] })
		}
	}
	return 0, nil
}

// destroyOnce deletes elements in one transaction. Where a missing element is an error,
// each element has its own message, so that the answers say which is missing.
func (c *Conn) destroyOnce(op nft.DeleteElements, destroy bool) error {
	kind := c.destroy
	if !destroy {
		kind = unix.NFT_MSG_DELSETELEM
	}
	begin := c.seq + 1
	c.encoder.reset(begin+1, nil, !destroy)
	if err := c.encoder.addElements(0, kind, 0, op, op.Set); err != nil {
		return err
	}
	c.seq = begin + uint32(len(c.encoder.spans)) + 1
	answers, err := c.commitMessages(begin, c.encoder.B)
	if err == nil && len(answers) > 0 {
		err = c.batchError(nft.Batch{Ops: []nft.Op{op}}, answers, false)
	}
	return err
}

// allAre says that each refusal has this errno.
func (e *BatchError) allAre(errno unix.Errno) bool {
	return !slices.ContainsFunc(e.Errors, func(o OpError) bool { return o.Errno != errno })
}
