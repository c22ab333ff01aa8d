package kernel

import (
	"maps"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// cause says by the errno what a refusal of an element is about.
type cause uint8

const (
	// ofPart: the element itself is wrong, whatever else is in the batch.
	ofPart cause = iota
	// ofShortage: the kernel has no memory for it, or its set no room.
	ofShortage
	// ofOthers: it is about the moment, the process, or what parts share.
	ofOthers
)

// causeOf is ofPart for every errno that is not listed below: EEXIST (the key is there with other data, or another
// interval overlaps), EBUSY (older kernels' word for it), EINVAL, ERANGE and EOPNOTSUPP (the element does not fit the
// set), and unforeseen ones, since otherwise one part could keep all others out.
func causeOf(errno syscall.Errno) cause {
	switch errno {
	case unix.ENOMEM, // for the element, for its chain, or for the undo log
		unix.ENOBUFS,  // for the datagram or the answer
		unix.EMSGSIZE, // the datagram does not fit the send buffer
		unix.ENFILE,   // the set is full, which many parts share
		unix.ENOSPC:   // older kernels' word for it
		return ofShortage
	case unix.ELOOP, unix.EMLINK, // chains in a loop, which the commit finds and blames on the first message
		unix.EPERM, unix.EACCES, // the process's rights, or the table's owner
		unix.EINTR, unix.EAGAIN, // a signal, or a module that is being loaded
		unix.ERESTART,  // the batch is of an older generation
		unix.EMFILE,    // a shared chain has too many users
		unix.ETIMEDOUT: // as EINTR
		return ofOthers
	}
	return ofPart
}

// Parts lists the parts that are at fault themselves, each once, sorted: those of the refused elements. Four kinds of
// refusals name no part: those whose errno is not about an element; those of elements whose set or chain was refused
// too, since the kernel goes on with the batch; additions to a set in which it has refused a deletion, since the key
// may be there for that; and deletions of an element that is missing, since another process deleted it first.
func (e *BatchError) Parts() []string {
	shared, undeleted := e.refusedObjects()
	parts := map[string]bool{}
	for i := range e.Errors {
		o := &e.Errors[i]
		_, deletes := o.Op.(nft.DeleteElements)
		switch {
		case o.Element == nil, causeOf(o.Errno) != ofPart, deletes && o.Errno == unix.ENOENT,
			!deletes && undeleted[sharedObject{o.Table, o.Element.Set}],
			shared[sharedObject{o.Table, o.Element.Set}], shared[sharedObject{o.Table, o.Element.Verdict.Chain}]:
		default:
			parts[o.Element.Part] = true
		}
	}
	return slices.Sorted(maps.Keys(parts))
}

// Short reports whether the kernel had no memory for some of the batch, or a set no room. A
// smaller batch may go in.
func (e *BatchError) Short() bool {
	return slices.ContainsFunc(e.Errors, func(o OpError) bool { return causeOf(o.Errno) == ofShortage })
}

// sharedObject is a set or a chain. If a table had both of one name, Parts would only name a part less.
type sharedObject struct {
	table nft.TableID
	name  string
}

// refusedObjects is the sets and chains that the kernel refused, and the sets in which it refused to delete an element:
// it leaves the rest of that message, too.
func (e *BatchError) refusedObjects() (shared, undeleted map[sharedObject]bool) {
	shared, undeleted = map[sharedObject]bool{}, map[sharedObject]bool{}
	for i := range e.Errors {
		switch op := e.Errors[i].Op.(type) {
		case nft.AddSet:
			shared[sharedObject{op.Table, op.Set.Name}] = true
		case nft.DeleteSet:
			shared[sharedObject{op.Table, op.Set}] = true
		case nft.AddChain:
			shared[sharedObject{op.Table, op.Chain.Name}] = true
		case nft.DeleteElements:
			undeleted[sharedObject{op.Table, op.Set.Name}] = true
		}
	}
	return shared, undeleted
}
