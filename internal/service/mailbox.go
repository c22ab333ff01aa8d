package service

import (
	"sync"
	"time"
)

// Update is the state of all services at one moment.
type Update struct {
	Snapshot Snapshot
	// Since is when the oldest change that the reader has not seen yet
	// arrived in this process, by its monotonic clock. For the first update,
	// before which nothing may be published, it is when the source had synced.
	Since time.Time
}

// Mailbox holds the newest update until the reader takes it. A writer never
// waits: what has not been read is replaced. It is safe for concurrent use.
type Mailbox struct {
	full chan struct{}

	mu     sync.Mutex
	update *Update
}

// NewMailbox returns an empty mailbox.
func NewMailbox() *Mailbox { return &Mailbox{full: make(chan struct{}, 1)} }

// Put replaces the unread update, if there is one, whose Since it inherits.
func (m *Mailbox) Put(u Update) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.update != nil && m.update.Since.Before(u.Since) {
		u.Since = m.update.Since
	}
	m.update = &u
	select {
	case m.full <- struct{}{}:
	default: // It is lit already.
	}
}

// C is readable when there is something to Take. A receive uses the signal up,
// so a receiver must Take afterwards; Take without a receive is fine too, and
// then a later receive may find nothing new.
func (m *Mailbox) C() <-chan struct{} { return m.full }

// Take empties the mailbox. It never waits; false means that it was empty.
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
