package endurance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// TestThreeDays: 72 hours of a simulated clock, with a change every ten seconds or so, refusals of the
// kernel, and other programs that change the ruleset and remove our tables. Goroutines and memory do not
// grow, and at the end the kernel holds what the Services ask for. The short form has six hours.
func TestThreeDays(t *testing.T) {
	hours := 72
	if testing.Short() {
		hours = 6
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		d := startDays(t, seed)
		var heap, goroutines []int
		for range hours {
			d.hour()
			heap, goroutines = append(heap, heapInUse()), append(goroutines, runtime.NumGoroutine())
		}
		d.calmDown()
		t.Logf("%d changes, %d syncs, %d refusals, %d batches; heap %d kB after an hour, %d kB at the end",
			d.changes, d.syncs, d.kernel.refused, d.kernel.batches, heap[0]>>10, heap[hours-1]>>10)
		if d.kernel.refused == 0 {
			t.Error("the kernel refused nothing")
		}
		for i, n := range goroutines {
			if n > goroutines[0] {
				t.Errorf("%d goroutines after the first hour, %d after hour %d", goroutines[0], n, i+1)
				break
			}
		}
		if most := 2*heap[0] + 2<<20; heap[hours-1] > most {
			t.Errorf("the heap has %d bytes after the first hour, %d at the end", heap[0], heap[hours-1])
		}
	})
}

// heapInUse is what a collection leaves, in bytes.
func heapInUse() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// days is a loop with a model of a kernel, in a bubble.
type days struct {
	*testing.T
	rng            *rand.Rand
	kernel         *modelKernel
	services       *snapshots.Builder
	mailbox        *service.Mailbox
	changes, syncs int
	last           proxy.Sync
}

func startDays(t *testing.T, seed uint64) *days {
	d := &days{T: t, rng: rand.New(rand.NewPCG(seed, 0)), kernel: &modelKernel{model: nft.NewModel()},
		services: snapshots.NewBuilder(gen.PlainNode()), mailbox: service.NewMailbox()}
	d.kernel.rng = rand.New(rand.NewPCG(seed, 1))
	loop := proxy.New(proxy.DefaultConfig(), d.kernel, ruleset.NewCompiler(config()).Compile, func(s proxy.Sync) {
		d.syncs++
		d.last = s
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- loop.Run(ctx, d.mailbox) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
	})
	return d
}

// daysServices is how many Services there are at most.
const daysServices = 30

// hour lets an hour pass, with changes at random moments.
func (d *days) hour() {
	for end := time.Now().Add(time.Hour); time.Now().Before(end); {
		time.Sleep(time.Duration(d.rng.IntN(int(20 * time.Second))))
		synctest.Wait()
		switch dice := d.rng.IntN(100); {
		case dice == 0:
			d.kernel.foreign(nft.DeleteTable{Table: nft.TableID{Family: nft.IPv4, Name: config().Table}})
		case dice < 10:
			d.kernel.foreign()
		case dice < 20:
			d.services.Delete(gen.Name(d.rng.IntN(daysServices)))
			d.publish()
		default:
			d.services.Set(gen.NamedService(d.rng, gen.Name(d.rng.IntN(daysServices)), gen.Options{}))
			d.publish()
		}
	}
}

func (d *days) publish() {
	d.changes++
	d.mailbox.Put(service.Update{Snapshot: d.services.Snapshot(), Since: time.Now()})
	synctest.Wait()
}

// calmDown ends the refusals. Within ten minutes everything is in force.
func (d *days) calmDown() {
	d.Helper()
	d.kernel.refuseNoMore()
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	if d.last.Err != nil || len(d.last.Quarantined) > 0 {
		d.Errorf("ten minutes after the last refusal: error %v, in quarantine %v", d.last.Err, d.last.Quarantined)
	}
	if diff := check.Diff(ruleset.Compile(config(), d.services.Snapshot()), d.kernel.model); diff != "" {
		d.Errorf("the kernel at the end (-want +got):\n%s", diff)
	}
}

// modelKernel is a strict model of a kernel without owners of tables. It refuses a batch now and then: as
// a whole, or for one of its Services.
type modelKernel struct {
	// mu is for the race detector, which does not know the order of time in a bubble.
	mu         sync.Mutex
	model      *nft.Model
	rng        *rand.Rand
	generation uint32
	// refusals is how many batches it refuses in a row, -1 for none from now on.
	refusals         int
	refused, batches int
}

func (k *modelKernel) refuseNoMore() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refusals = -1
}

// foreign is a transaction of another program.
func (k *modelKernel) foreign(ops ...nft.Op) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = strict.Apply(k.model, nft.Batch{Ops: ops}) // there may be no table
	k.generation++
}

func (k *modelKernel) Own(nft.TableID) error                 { return nil }
func (k *modelKernel) Owned(nft.TableID) (bool, error)       { return false, nil }
func (k *modelKernel) Spent() (encode, commit time.Duration) { return 0, 0 }

func (k *modelKernel) Generation() (uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.generation, nil
}

func (k *modelKernel) ReadTable(want *nft.Table) (*nft.Contents, error) {
	time.Sleep(20 * time.Millisecond)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.model.Table(want.ID()), nil
}

func (k *modelKernel) Objects(id nft.TableID) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.model.Table(id); c != nil {
		return len(c.Chains) + len(c.Sets), nil
	}
	return 0, nil
}

func (k *modelKernel) Apply(b nft.Batch) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.batches++
	if k.refusals == 0 && k.rng.IntN(20) == 0 {
		k.refusals = 1 + k.rng.IntN(4)
	}
	if k.refusals > 0 {
		k.refusals--
		k.refused++
		if part := partOf(b); part != "" && k.rng.IntN(2) == 0 {
			return refusedPart(part)
		}
		return errors.New("refused")
	}
	if err := strict.Apply(k.model, b); err != nil {
		return fmt.Errorf("the model refuses: %w", err)
	}
	k.generation += uint32(len(b.Transactions()))
	return nil
}

// partOf is a part to which the batch adds elements.
func partOf(b nft.Batch) string {
	for _, op := range b.Ops {
		if add, ok := op.(nft.AddElements); ok && len(add.Elements) > 0 {
			return add.Elements[0].Part
		}
	}
	return ""
}

// refusedPart is an error about a part, as the kernel's are.
type refusedPart string

func (e refusedPart) Error() string   { return "refused " + string(e) }
func (e refusedPart) Parts() []string { return []string{string(e)} }
