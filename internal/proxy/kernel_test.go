package proxy_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"nftproxy/nft"
)

// fakeKernel is a model of a kernel that refuses on command. Only one
// goroutine at a time may use it: synctest.Wait and handOver see to that.
type fakeKernel struct {
	model *nft.Model
	// refuse is asked before a batch is applied, lose after it: an error of
	// refuse leaves the model as it is, one of lose does not. Nil is no error.
	refuse, lose func(nft.Batch) error
	// claimErr and readErr are for one family if that is named, else for both.
	claimErr, readErr error
	troubled          nft.Family
	// hang blocks Apply until it is closed.
	hang chan struct{}
	// readTakes is how long a Read takes.
	readTakes time.Duration
	// owned keeps others from changing the tables.
	owned bool
	// generation is raised by each transaction, of the test's too.
	generation uint32

	mu            sync.Mutex // orders the test's writes before the loop's reads
	claims, reads int
	applied       []appliedBatch
	refused       int
}

// perLook is how many tables a look at the kernel claims and reads.
const perLook = 2

type appliedBatch struct {
	at    time.Time
	batch nft.Batch
}

func newKernel() *fakeKernel { return &fakeKernel{model: nft.NewModel()} }

// handOver makes what this goroutine has written visible to the next one that
// calls it.
func (k *fakeKernel) handOver() {
	k.mu.Lock()
	defer k.mu.Unlock()
}

func (k *fakeKernel) Claim(id nft.TableID) error {
	k.handOver()
	k.claims++
	return k.trouble(id.Family, k.claimErr)
}

func (k *fakeKernel) ReadTable(want *nft.Table) (*nft.Contents, error) {
	k.reads++
	time.Sleep(k.readTakes) // in a synctest bubble
	if err := k.trouble(want.Family, k.readErr); err != nil {
		return nil, err
	}
	return k.model.Table(want.ID()), nil
}

// trouble is the error in a family that has it.
func (k *fakeKernel) trouble(f nft.Family, err error) error {
	if k.troubled != 0 && k.troubled != f {
		return nil
	}
	return err
}

func (k *fakeKernel) Generation() (uint32, error) {
	k.handOver()
	return k.generation, nil
}

func (k *fakeKernel) Owned(nft.TableID) (bool, error) { return k.owned, nil }

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
	if err := k.model.Apply(b); err != nil {
		k.refused++
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

// refuseFamily refuses batches that touch the family's table.
func refuseFamily(f nft.Family, err error) func(nft.Batch) error {
	return func(b nft.Batch) error {
		if b.Only(f).Empty() {
			return nil
		}
		return err
	}
}

// times makes the first n answers of a refusal count and no more.
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
