package service

import (
	"sync"
	"time"
)

// Update is the state of all services at one moment.
type Update struct {
	Snapshot Snapshot
	// Since is when the oldest change that the reader has not seen arrived in this
	// process, by its monotonic clock. For the first update it is when the source had
	// synced, since no update may be published before.
	Since time.Time
	// Changes is how many changes of objects the source had seen by then, since its
	// start.
	Changes Changes
	// Triggers are those that the reader has not seen, at most MaxTriggers: the oldest.
	Triggers []Trigger
}

// Changes counts the changes of objects that a source has seen, also those that make
// no difference to a snapshot.
type Changes struct{ Services, EndpointSlices uint64 }

// Trigger is the cause of a change of endpoints: a pod or a Service that changed.
type Trigger struct {
	// Time is when the cause happened, by the clock of the control plane, which may be
	// ahead of this node's.
	Time time.Time
	// V6 says that the endpoints are IPv6 addresses.
	V6 bool
}

// MaxTriggers bounds the triggers in an update.
const MaxTriggers = 10_000

// JoinTriggers returns the triggers of two lists, the earlier list first, without those
// beyond MaxTriggers. It may use the memory of earlier.
func JoinTriggers(earlier, later []Trigger) []Trigger {
	return append(earlier, later[:min(len(later), max(0, MaxTriggers-len(earlier)))]...)
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

// Put replaces the update in the mailbox, if there is one, and takes over its Since and
// its Triggers.
func (m *Mailbox) Put(u Update) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.update; old != nil {
		if old.Since.Before(u.Since) {
			u.Since = old.Since
		}
		u.Triggers = JoinTriggers(old.Triggers, u.Triggers)
	}
	m.update = &u
	select {
	case m.full <- struct{}{}:
	default: // The signal is set already.
	}
}

// C is readable when there is an update to Take. A receive uses up the signal, so a
// receiver must Take afterwards. Take without a receive is fine too; then a later receive
// may find no update.
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
