package service

import (
	"sync"
	"time"

	"nftproxy/model/ip"
)

// Update is the state of all services at one moment.
type Update struct {
	Snapshot Snapshot
	// Since is when the oldest change that the reader has not seen arrived in this process, by its
	// monotonic clock. For the first update it is the time when the source had synced, since no
	// update may be published before.
	Since time.Time
	// Changes is how many changes of objects the source had seen by then, since its
	// start.
	Changes Changes
	// Triggers are those that the reader has not seen.
	Triggers Triggers
}

// Changes counts the changes of objects that a source has seen, also those that make
// no difference to a snapshot.
type Changes struct{ Services, EndpointSlices uint64 }

// Triggers are the times at which the causes of changed endpoints happened: a pod or a Service
// changed. They come from the clock of the control plane, which may be ahead of this node's. They
// belong to the family of the endpoints. Each list has at most MaxTriggers, the oldest. So one
// family cannot use up the space of the other.
type Triggers struct{ ip.PerFamily[[]time.Time] }

// MaxTriggers bounds the triggers of one family.
const MaxTriggers = 10_000

// Join adds later triggers. It may use the memory of earlier ones.
func (t *Triggers) Join(later Triggers) {
	for _, family := range ip.Families() {
		all, more := t.Of(family), *later.Of(family)
		*all = append(*all, more[:min(len(more), max(0, MaxTriggers-len(*all)))]...)
	}
}

// Mailbox holds the newest update until the reader takes it. A writer never waits: it
// replaces an update that was not taken. A Mailbox is safe for concurrent use.
type Mailbox struct {
	full chan struct{}

	mu     sync.Mutex
	update *Update
}

// NewMailbox returns an empty mailbox.
func NewMailbox() *Mailbox { return &Mailbox{full: make(chan struct{}, 1)} }

// Put replaces the update in the mailbox, if there is one, and keeps its Since and its Triggers.
func (m *Mailbox) Put(u Update) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.update; old != nil {
		if old.Since.Before(u.Since) {
			u.Since = old.Since
		}
		old.Triggers.Join(u.Triggers)
		u.Triggers = old.Triggers
	}
	m.update = &u
	select {
	case m.full <- struct{}{}:
	default: // The signal is set already.
	}
}

// Empty reports whether there is no update to Take.
func (m *Mailbox) Empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.update == nil
}

// C returns a channel that is readable when there is an update to Take. A receive uses up the
// signal, so a receiver must Take afterwards. Take without a receive is fine too; then a later
// receive may find no update.
func (m *Mailbox) C() <-chan struct{} { return m.full }

// Take returns the update and empties the mailbox. It never waits; false means that the
// mailbox was empty.
func (m *Mailbox) Take() (Update, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.update == nil {
		return Update{}, false
	}
	u := *m.update
	m.update = nil
	return u, true
}

// Newest holds the newest snapshot until the reader takes it from the channel. Its only writer never waits.
type Newest chan *Snapshot

// NewNewest returns an empty one.
func NewNewest() Newest { return make(Newest, 1) }

// Put replaces the snapshot, if there is one. One call has to end before the next.
func (n Newest) Put(s Snapshot) {
	select {
	case <-n:
	default:
	}
	n <- &s
}
