package proxy_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

// fakeKernel is a model of a kernel that refuses on command. Only one goroutine at a
// time may use it; synctest.Wait and handOver order them.
type fakeKernel struct {
	model *nft.Model
	// refuse is called before a batch is applied, lose after it. So an error of refuse
	// leaves the model as it is, and an error of lose does not. Both may be nil.
	refuse, lose func(nft.Batch) error
	// ownErr and readErr are the errors of Own and ReadTable in the family failing; in
	// both families if that is 0.
	ownErr, readErr error
	failing         nft.Family
	// afterRead is called after a table was read, before ReadTable returns it.
	afterRead func()
	// hang blocks Apply until it is closed.
	hang chan struct{}
	// readTakes is how long ReadTable takes.
	readTakes time.Duration
	// elementErrors has errors of the model name the parts, as a kernel's errors do.
	elementErrors bool
	// owned says that no other program can change the tables.
	owned bool
	// generation counts the transactions, also those of the test.
	asked      int // how often it was asked for the generation
	generation uint32

	mu          sync.Mutex // orders the test's writes before the loop's reads
	owns, reads int
	applied     []appliedBatch
	refused     int
}

// perRead is how many tables the loop owns and reads when it reads both families.
const perRead = 2

type appliedBatch struct {
	at    time.Time
	batch nft.Batch
}

func newKernel() *fakeKernel { return &fakeKernel{model: nft.NewModel()} }

// handOver makes the writes of this goroutine visible to the next one that calls it.
func (k *fakeKernel) handOver() {
	k.mu.Lock()
	defer k.mu.Unlock()
}

func (k *fakeKernel) Own(id nft.TableID) error {
	k.handOver()
	k.owns++
	return k.failure(id.Family, k.ownErr)
}

func (k *fakeKernel) ReadTable(want *nft.Table) (*nft.Contents, error) {
	k.reads++
	time.Sleep(k.readTakes) // in a synctest bubble
	k.handOver()            // the test may have written meanwhile
	if err := k.failure(want.Family, k.readErr); err != nil {
		return nil, err
	}
	contents := k.model.Table(want.ID())
	if k.afterRead != nil {
		k.afterRead()
	}
	return contents, nil
}

// failure is the error, if the family is to fail.
func (k *fakeKernel) failure(f nft.Family, err error) error {
	if k.failing != 0 && k.failing != f {
		return nil
	}
	return err
}

func (k *fakeKernel) Generation() (uint32, error) {
	k.handOver()
	k.asked++
	return k.generation, nil
}

func (k *fakeKernel) Owned(nft.TableID) (bool, error) { return k.owned, nil }

func (k *fakeKernel) Objects(id nft.TableID) (int, error) {
	k.handOver()
	contents := k.model.Table(id)
	if contents == nil {
		return 0, nil
	}
	return len(contents.Chains) + len(contents.Sets), nil
}

// Spent says of each Apply that it took 1 ms to encode and 2 ms to commit.
func (k *fakeKernel) Spent() (encode, commit time.Duration) {
	return time.Millisecond, 2 * time.Millisecond
}

func (k *fakeKernel) Apply(b nft.Batch) error {
	k.handOver()
	if k.hang != nil {
		<-k.hang
	}
	if k.refuse != nil {
		if err := k.refuse(b); err != nil {
			k.refused++
			return err
		}
	}
	if err := strict.Apply(k.model, b); err != nil {
		k.refused++
		if k.elementErrors {
			return partsError{changed(b), err}
		}
		return err
	}
	k.generation += uint32(len(b.Transactions()))
	k.applied = append(k.applied, appliedBatch{time.Now(), b})
	if k.lose != nil {
		return k.lose(b)
	}
	return nil
}

// partsError is an error about certain parts, as the kernel's are.
type partsError struct {
	parts []string
	err   error
}

func (e partsError) Error() string   { return fmt.Sprintf("%v: %v", e.parts, e.err) }
func (e partsError) Unwrap() error   { return e.err }
func (e partsError) Parts() []string { return e.parts }

// refuseParts refuses batches that add elements of one of the parts.
func refuseParts(err error, parts ...string) func(nft.Batch) error {
	return func(b nft.Batch) error {
		var bad []string
		for _, op := range b.Ops {
			add, ok := op.(nft.AddElements)
			if !ok {
				continue
			}
			for _, e := range add.Elements {
				if slices.Contains(parts, e.Part) && !slices.Contains(bad, e.Part) {
					bad = append(bad, e.Part)
				}
			}
		}
		if bad == nil {
			return nil
		}
		return partsError{bad, err}
	}
}

// shortError is an error for want of memory, as the kernel's are.
type shortError struct{ error }

func (e shortError) Unwrap() error { return e.error }
func (e shortError) Short() bool   { return true }

// refuseLarge refuses batches that add more elements than most, for want of memory.
func refuseLarge(most int) func(nft.Batch) error {
	return func(b nft.Batch) error {
		if added(b) > most {
			return shortError{syscall.ENOMEM}
		}
		return nil
	}
}

// changed lists the parts of which the batch adds or deletes elements.
func changed(b nft.Batch) []string {
	var parts []string
	for _, op := range b.Ops {
		switch op := op.(type) {
		case nft.AddElements:
			for _, e := range op.Elements {
				parts = append(parts, e.Part)
			}
		case nft.DeleteElements:
			for _, e := range op.Elements {
				parts = append(parts, e.Part)
			}
		}
	}
	slices.Sort(parts)
	return slices.Compact(parts)
}

// elements counts the elements of all tables.
func (k *fakeKernel) elements() (n int) {
	for _, f := range nft.Families() {
		for _, s := range k.model.Table(nft.TableID{Family: f, Name: rulesetConfig().Table}).Sets {
			n += len(s.Elements)
		}
	}
	return n
}

func added(b nft.Batch) (n int) {
	for _, op := range b.Ops {
		if add, ok := op.(nft.AddElements); ok {
			n += len(add.Elements)
		}
	}
	return n
}

// refuseFamily refuses batches that touch the family's table.
func refuseFamily(f nft.Family, err error) func(nft.Batch) error {
	return func(b nft.Batch) error {
		if slices.ContainsFunc(b.Ops, func(op nft.Op) bool { return nft.TableOf(op).Family == f }) {
			return err
		}
		return nil
	}
}

// times lets the first n errors of a refusal through, and no more.
func times(n int, refuse func(nft.Batch) error) func(nft.Batch) error {
	return func(b nft.Batch) error {
		if n == 0 {
			return nil
		}
		err := refuse(b)
		if err != nil {
			n--
		}
		return err
	}
}

func always(err error) func(nft.Batch) error { return func(nft.Batch) error { return err } }

var errRefused = errors.New("refused")
