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

// Put replaces the update in the mailbox, if there is one, and takes over its Since.
func (m *Mailbox) Put(u Update) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.update != nil && m.update.Since.Before(u.Since) {
		u.Since = m.update.Since
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
