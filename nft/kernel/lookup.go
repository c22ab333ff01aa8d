package kernel

import (
	"errors"
	"iter"
	"maps"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

const (
	// lookUpFrom is the number of elements from which on a set is read by keys. The CPU time of a dump
	// grows with the square of the number (see sweepOnce), and that of lookups with the number. They meet here.
	lookUpFrom = 250_000
	// lookUpAtOnce is the number of keys in one request. Each has an answer of its own, and all
	// answers have to fit the receive buffer, which holds 256 by default.
	lookUpAtOnce = 128
	// lookUpBeyond is the number of keys in a request behind the end of a pool. The kernel answers
	// up to the first key that it does not have.
	lookUpBeyond = 8
	// lookUpMisses is how many keys may be missing, and for lookUpMissShare found ones one more. A
	// missing key ends its request, so with many of them a dump is faster.
	lookUpMisses    = 1000
	lookUpMissShare = 8
)

// elementCatchAll is NFT_SET_ELEM_CATCHALL, which x/sys/unix lacks.
const elementCatchAll = 2

// errTooFew says that a set does not hold enough of the keys that were looked up.
var errTooFew = errors.New("too few of the keys are there")

// lookup reads a set by keys. Their number shows that they are all: the kernel counts all elements but one that catches
// every key.
type lookup struct {
	reader *tableReader
	set    *nft.SetContents
	// count is the number of elements that the kernel says the set has.
	count int

	// mu guards the set's elements, and what follows.
	mu      sync.Mutex
	missing int
	err     error
}

// lookUpElements reads a large set by the keys that the table wants, and by those that it probably had
// before. It returns false if that does not give all elements; the set must then be dumped.
func (r *tableReader) lookUpElements(s *nft.SetContents) bool {
	count, known := r.counts[s.Set.Name]
	if !known || count < r.conn.lookUpFrom || s.Set.Interval {
		return false
	}
	l := &lookup{reader: r, set: s, count: count}
	if l.lookUpWanted() == nil && (l.complete() || l.lookUpFormer() == nil) && l.complete() && l.hasNoCatchAll() {
		return true
	}
	clear(s.Elements)
	return false
}

func (l *lookup) complete() bool { return len(l.set.Elements) == l.count }

// lookUpWanted looks up the keys that the table wants in the set: on the reader's socket, and on those
// that nobody else uses just now.
func (l *lookup) lookUpWanted() error {
	requests := make(chan []nft.Value, 8)
	var all sync.WaitGroup
	work := func(r *nfnetlink.Requester) {
		all.Go(func() {
			w := l.workerOn(r)
			for keys := range requests {
				w.lookUpAll(keys)
			}
		})
	}
	conn := l.reader.conn
	work(&conn.reader)
	for _, r := range []*nfnetlink.Requester{&conn.sweeper, &conn.counts}[:min(2, runtime.GOMAXPROCS(0)-1)] {
		if r.TryLock() {
			defer r.Unlock()
			work(r)
		}
	}
	keys := make([]nft.Value, 0, lookUpAtOnce)
	for key := range l.reader.want.Keys(l.set.Set.Name) {
		if keys = append(keys, key); len(keys) == lookUpAtOnce {
			requests <- keys
			keys = make([]nft.Value, 0, lookUpAtOnce)
		}
	}
	requests <- keys
	close(requests)
	all.Wait()
	return l.err
}

// lookUpFormer looks up the keys that pools probably had when the set was written: those of frontends that the table
// does not want, of which keys in the small sets tell, and those behind the ends of the pools that it wants.
func (l *lookup) lookUpFormer() error {
	w := l.workerOn(&l.reader.conn.reader)
	wanted := map[nft.Value]int{}
	for _, part := range l.reader.want.Parts.All() {
		for i := range part.Pools {
			if p := &part.Pools[i]; p.Map == l.set.Set.Name {
				wanted[p.Prefix] = p.Len()
			}
		}
	}
	for prefix := range l.reader.frontends(w.decoder.shape.key) {
		if _, is := wanted[prefix]; is || l.complete() {
			continue
		}
		if err := w.lookUpFrom(prefix, 0); err != nil {
			return err
		}
	}
	for prefix, end := range wanted {
		if l.complete() {
			return nil
		}
		if err := w.lookUpFrom(prefix, end); err != nil {
			return err
		}
	}
	return nil
}

// frontends yields the keys in the small sets that a pool with keys of this length can have for its prefix.
func (r *tableReader) frontends(keyLen int) iter.Seq[nft.Value] {
	return func(yield func(nft.Value) bool) {
		for _, s := range r.small {
			for key := range s.Elements {
				if len(key.WithIndex(0)) == keyLen && !yield(key) {
					return
				}
			}
		}
	}
}

// hasNoCatchAll says that the set certainly has no element that catches every key. No program has one.
func (l *lookup) hasNoCatchAll() bool {
	e := elementsOf(l.reader.want.ID(), l.set.Set)
	list := e.BeginNest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	at := e.BeginNest(unix.NFTA_LIST_ELEM)
	e.Uint32(unix.NFTA_SET_ELEM_FLAGS, elementCatchAll)
	e.EndNest(at)
	e.EndNest(list)
	err := l.workerOn(&l.reader.conn.reader).receive(e, func(nfnetlink.Attributes) {})
	return errors.Is(err, unix.ENOENT)
}

// lookupWorker looks up keys on one socket.
type lookupWorker struct {
	*lookup
	requester *nfnetlink.Requester
	decoder   elementDecoder
}

func (l *lookup) workerOn(r *nfnetlink.Requester) *lookupWorker {
	w := &lookupWorker{lookup: l, requester: r, decoder: l.reader.decoderOf(l.set)}
	w.decoder.chains = maps.Clone(w.decoder.chains) // which the decoder changes
	return w
}

// lookUpFrom looks up a pool's elements from an index on, up to the pool's end.
func (w *lookupWorker) lookUpFrom(prefix nft.Value, index int) error {
	keys := make([]nft.Value, lookUpBeyond)
	for {
		for i := range keys {
			keys[i] = prefix.WithIndex(index + i)
		}
		answered, err := w.request(keys)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		index += answered
	}
}

// lookUpAll looks up each of the keys, as long as no worker has met an error.
func (w *lookupWorker) lookUpAll(keys []nft.Value) {
	for len(keys) > 0 && !w.failed() {
		answered, err := w.request(keys)
		if err == nil {
			return
		}
		w.note(err)
		keys = keys[min(answered+1, len(keys)):]
	}
}

func (w *lookupWorker) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// note counts a missing key. Any other error, and too many of these, are the lookup's failure.
func (w *lookupWorker) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
	case !errors.Is(err, unix.ENOENT):
		w.err = err
	default:
		if w.missing++; w.missing > lookUpMisses+len(w.set.Elements)/lookUpMissShare {
			w.err = errTooFew
		}
	}
}

// request looks up the keys, up to the first that is missing, which is the error ENOENT. It returns
// how many there are before that one.
func (w *lookupWorker) request(keys []nft.Value) (answered int, err error) {
	w.decoder.reset()
	e, err := elementsWith(w.reader.want.ID(), w.set.Set, keys)
	if err != nil {
		return 0, err
	}
	err = w.receive(e, func(list nfnetlink.Attributes) {
		answered++
		w.decoder.gather(list)
	})
	switch {
	case w.decoder.foreign:
		return answered, errOtherShape
	case err == nil && answered != len(keys):
		return answered, unix.ENOBUFS // an answer was lost
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decoder.keep(w.set.Elements)
	return answered, err
}

// receive asks for elements, and visits the list in each nfnetlink.Answer.
func (w *lookupWorker) receive(request *encoder, visit func(list nfnetlink.Attributes)) error {
	family := uint8(w.reader.want.Family)
	return w.requester.Receive(unix.NFT_MSG_GETSETELEM, 0, family, request.B, func(m nfnetlink.Message) error {
		visit(m.Attributes().Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS))
		return nil
	})
}
