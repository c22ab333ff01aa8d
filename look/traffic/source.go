package traffic

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// A Source reads no more often than once in minAge, and takes at most one core in sourceShare in
// the long run, however often it is asked.
const (
	minAge      = 10 * time.Second
	sourceShare = 100
	sourceBurst = time.Second
)

// Source has the latest numbers of all Service ports, for readers that come at any time. It is
// safe for concurrent use.
type Source struct {
	clock  func() time.Time
	latest atomic.Pointer[service.Snapshot]

	mu     sync.Mutex
	reader *Reader
	budget pace.Budget
	ports  []PortTraffic
	read   time.Time
}

// NewSource makes a Source. The clock is time.Now, but in tests.
func NewSource(k Kernel, table string, clock func() time.Time) *Source {
	return &Source{
		clock: clock, reader: NewReader(k, table, clock),
		budget: pace.Budget{Rest: sourceShare, Burst: sourceBurst},
	}
}

// Notify says which Services are in force. It costs nothing and never blocks.
func (s *Source) Notify(inForce service.Snapshot) { s.latest.Store(&inForce) }

// Ports returns the Service ports with their totals, the greatest first, and the total of all ports
// that there ever were: as of now, or of the last read if a new one is not due. The caller
// must not change the list.
func (s *Source) Ports() (ports []PortTraffic, total uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	snapshot := s.latest.Load()
	if snapshot == nil || !s.read.IsZero() && now.Sub(s.read) < minAge || now.Before(s.budget.Ready()) {
		return s.ports, s.reader.total, nil
	}
	s.read = now
	s.reader.Follow(*snapshot)
	list, err := s.reader.Read()
	end := s.clock()
	s.budget.Spend(end, end.Sub(now))
	if err != nil {
		return s.ports, s.reader.total, err
	}
	slices.SortFunc(list, func(a, b PortTraffic) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), comparePorts(a.Port, b.Port))
	})
	s.ports = list
	return list, s.reader.total, nil
}
