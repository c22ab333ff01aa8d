// Package kernelmodel promises to notice where the model of package strict and the real kernel
// differ: in a transaction that one of them takes and the other refuses, or in what they hold at the
// end of a test.
//
// A test opens its kernel.Conn with Config. Before each transaction the model has the tables that
// the kernel has; they are read where another process may have written. Not compared are
// transactions with faults of the moment (rights, memory, a signal), those during which another
// process wrote, and very large ones. The count of compared ones is an attribute of the test.
package kernelmodel

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check/strict"
)

// most is how many elements the tables have together that are still compared: the model copies all of
// them for each transaction.
const most = 5000

// Config is the configuration with a witness of each transaction. The test fails where model and
// kernel differ. Several Conns of one namespace may have one each.
func Config(t testing.TB, config kernel.Config) kernel.Config {
	t.Helper()
	reader, err := kernel.Open(kernel.Config{NetNS: config.NetNS})
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{reader: reader, fail: func(text string) { t.Helper(); t.Error(text) }}
	t.Cleanup(func() {
		w.compareContents()
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
		t.Attr("batches-compared", strconv.Itoa(w.compared))
		t.Attr("batches-not-compared", strconv.Itoa(w.skipped))
	})
	config.Around = w.around
	return config
}

// witness compares the transactions of one Conn with a model.
type witness struct {
	mu     sync.Mutex
	reader *kernel.Conn
	fail   func(string)
	// model has the tables as the kernel has them at the generation; nil if that is not known.
	model      *nft.Model
	generation uint32
	tables     map[nft.TableID]bool

	compared, skipped int
}

// around carries out the transaction in the kernel and in the model.
func (w *witness) around(b nft.Batch, apply func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, ready := w.prepare(b)
	err := apply()
	if !ready {
		w.skip()
		return err
	}
	refused := strict.Apply(w.model, b)
	after, failed := w.reader.Generation()
	expected := before
	if err == nil {
		expected++
	}
	if failed != nil || after != expected || !comparable(err) {
		w.skip()
		return err
	}
	w.generation = after
	w.compared++
	if (err == nil) != (refused == nil) {
		w.fail(fmt.Sprintf("the kernel's answer is %v, and the model's is %v, to\n%s", err, refused, b))
	}
	if err != nil || refused != nil {
		w.model = nil
	}
	return err
}

// skip counts a transaction that is not compared. What the kernel has is then not known.
func (w *witness) skip() {
	w.skipped++
	w.model = nil
}

// prepare has the model hold the tables that the transaction is about. It returns the generation.
func (w *witness) prepare(b nft.Batch) (generation uint32, ready bool) {
	generation, err := w.reader.Generation()
	if err != nil || b.Size() > most {
		return 0, false
	}
	if w.model == nil || generation != w.generation {
		w.model, w.tables = nft.NewModel(), map[nft.TableID]bool{}
	}
	for _, op := range b.Ops {
		if id := nft.TableOf(op); !w.tables[id] {
			w.tables[id] = true
			if !w.read(id) {
				return 0, false
			}
		}
		if ofRules(op) {
			return 0, false
		}
	}
	again, err := w.reader.Generation()
	return generation, err == nil && again == generation && w.size() <= most
}

// ofRules says that the operation is about elements that else rules add. The model has none of them.
func ofRules(op nft.Op) bool {
	switch op := op.(type) {
	case nft.AddElements:
		return op.Set.Dynamic
	case nft.DeleteElements:
		return op.Set.Dynamic
	}
	return false
}

// read reads a table into the model. It returns false if the model cannot hold it.
func (w *witness) read(id nft.TableID) bool {
	contents, err := w.reader.ReadTable(&nft.Table{Family: id.Family, Name: id.Name})
	if err != nil {
		return false
	}
	if contents != nil {
		w.model.Put(contents)
	}
	return contents == nil || !slices.ContainsFunc(slices.Collect(maps.Values(contents.Sets)),
		func(s *nft.SetContents) bool { return len(s.Set.Key) == 0 })
}

func (w *witness) size() (n int) {
	for id := range w.tables {
		if c := w.model.Table(id); c != nil {
			for _, s := range c.Sets {
				n += len(s.Elements)
			}
		}
	}
	return n
}

// comparable says that the outcome is about the batch and the tables alone.
func comparable(err error) bool {
	var refused *kernel.BatchError
	if err == nil {
		return true
	}
	if !errors.As(err, &refused) || refused.Partial {
		return false
	}
	ofTheMoment := []unix.Errno{unix.EPERM, unix.ENOMEM, unix.ENOBUFS, unix.EMSGSIZE, unix.EINTR, unix.EAGAIN,
		unix.ERESTART, unix.EMFILE}
	return !slices.ContainsFunc(refused.Errors, func(e kernel.OpError) bool {
		return slices.Contains(ofTheMoment, e.Errno)
	})
}

// compareContents compares what the kernel and the model hold in the end.
func (w *witness) compareContents() {
	w.mu.Lock()
	defer w.mu.Unlock()
	generation, err := w.reader.Generation()
	if err != nil || w.model == nil || generation != w.generation {
		return
	}
	have := nft.NewModel()
	for id := range w.tables {
		want := &nft.Table{Family: id.Family, Name: id.Name}
		if c := w.model.Table(id); c != nil {
			for _, s := range c.Sets {
				want.Sets = want.Sets.Set(s.Set.Name, s.Set)
			}
			for name, chain := range c.Chains {
				want.Chains = want.Chains.Set(name, chain)
			}
			for name, timeout := range c.Timeouts {
				want.Timeouts = want.Timeouts.Set(name, timeout)
			}
		}
		contents, err := w.reader.ReadTable(want)
		if err != nil {
			return
		}
		if contents != nil {
			have.Put(contents)
		}
	}
	if again, err := w.reader.Generation(); err != nil || again != generation {
		return
	}
	if diff := cmp.Diff(w.model.String(), have.String()); diff != "" {
		w.fail("the model and the kernel differ at the end (-model +kernel):\n" + diff)
	}
}
