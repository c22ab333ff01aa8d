package proxy

import (
	"errors"
	"slices"
	"time"

	"nftproxy/nft"
)

// maxReads bounds how often one sync reads the tables because of refusals, while another program writes to the ruleset.
// A part that every refusal names is then to blame.
const maxReads = 3

// An inquiry finds out why the kernel refused a batch, and whether the same sync writes again. The knowledge of the
// tables and the writers since the last read decide:
//
//	tables   writers since  to blame                     before the next write
//	written  any            a change by another program  read
//	read     none           the parts in the error       leave them out
//	read     loop alone     the parts in the error       leave them out, read
//	read     maybe others   not known yet                read, up to maxReads times
//	read     maybe others   the parts in all errors      leave them out, read
//
// An error without a new part ends the writes of these tables in this sync, unless the
// kernel lacks memory and makeRoom finds parts to leave out.
type inquiry struct {
	applier *applier
	sync    *Sync
	tables  []*familyTable
	// refusals counts those of batches that were planned from tables just read.
	refusals int
	// suspects are the parts that each of these refusals named.
	suspects []string
	// aside is how many parts were last left out for want of memory.
	aside int
}

// mayWriteAgain says whether the sync writes again after a batch that failed.
func (i *inquiry) mayWriteAgain(batch nft.Batch, err error) bool {
	if batch.Empty() {
		return false // The tables could not even be read.
	}
	if remembered := tablesThatAre(written, i.tables); len(remembered) > 0 {
		allMustBeRead(remembered)
		return true
	}
	guilty, certain := i.guiltyParts(err)
	switch {
	case !certain:
		return true
	case len(guilty) > 0:
		return i.isolate(guilty, err)
	}
	return isShort(err) && i.makeRoom(batch, err)
}

// guiltyParts lists the parts to blame for a refusal after a read. It is not
// certain while another program may have written between read and refusal.
func (i *inquiry) guiltyParts(err error) (guilty []string, certain bool) {
	guilty = refusedParts(err)
	if i.refusals++; i.refusals == 1 {
		i.suspects = slices.Clone(guilty)
	} else {
		i.suspects = slices.DeleteFunc(i.suspects, func(name string) bool { return !slices.Contains(guilty, name) })
	}
	by := i.writersSinceRead()
	if by != nobody {
		allMustBeRead(i.tables)
	}
	if by == maybeOthers {
		if i.refusals < maxReads {
			return nil, false
		}
		guilty = i.suspects
	}
	i.refusals, i.suspects = 0, nil
	return guilty, true
}

// writers are the programs that may have written to our tables.
type writers uint8

const (
	nobody writers = iota
	// loopAlone: a part of the refused batch may have gone in.
	loopAlone
	maybeOthers
)

// writersSinceRead says who may have written to the tables since the last read.
func (i *inquiry) writersSinceRead() writers {
	kernel := i.applier.kernel
	if generation, err := kernel.Generation(); err == nil && generation == i.applier.generationRead {
		return nobody
	}
	for _, t := range i.tables {
		if owned, err := kernel.Owned(i.sync.Program.Table(t.family).ID()); err != nil || !owned {
			return maybeOthers
		}
	}
	return loopAlone
}

// isolate leaves guilty parts out of the program. False means that each of them
// is left out already, or is not in the program: then another write is no use.
func (i *inquiry) isolate(names []string, err error) bool {
	isolated := false
	for _, name := range names {
		content := partsOf(i.sync.Program, name)
		if i.quarantine().leavesOut(name) || content.empty() {
			continue
		}
		i.quarantine().refused(name, content, err, time.Now())
		isolated = true
	}
	return isolated
}

func (i *inquiry) quarantine() *quarantine { return i.applier.quarantine }

// refusedParts lists the parts that an error of the kernel blames.
func refusedParts(err error) []string {
	var refusal interface{ Parts() []string }
	if !errors.As(err, &refusal) {
		return nil
	}
	return slices.Clone(refusal.Parts())
}
