package listen

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/proxy"
	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// retryPeriod is the time after which an address is tried again that could not be listened on.
const retryPeriod = 5 * time.Second

// Config says where to listen.
type Config struct {
	// NodePortAddresses says which of the node's addresses serve node ports.
	NodePortAddresses service.NodePortAddresses
	// Observe is called after each change with the number of open listeners, and of those that could not be opened. It may
	// be nil.
	Observe func(open, failed int)
	// Within runs a function that opens a socket, for example in another network namespace. Nil means to run it directly.
	Within func(func() error) error
	// Log has one warning for each address that cannot be listened on.
	Log *slog.Logger
}

// address is where a listener listens.
type address struct {
	protocol service.Protocol
	at       netip.AddrPort
}

func (a address) compare(b address) int {
	return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.protocol, b.protocol))
}

// follower knows which addresses of one family are wanted, and what for.
type follower[W any] interface {
	// update follows a snapshot whose program is in force without the refused parts. It returns whether what is wanted
	// changes.
	update(s service.Snapshot, refused map[string]error) bool
	// wants returns a map that does not change.
	wants() map[address]W
}

// listener is an open socket, and what serves its clients.
type listener[W any] interface {
	// set says what the address is wanted for from now on.
	set(W)
	// stop frees the address before it returns.
	stop()
}

// kind is what is not the same for all kinds of listeners.
type kind[W any] struct {
	families ip.PerFamily[follower[W]]
	open     func(context.Context, address, W) (listener[W], error)
	// opened and failed are the messages of the log, and about their attributes.
	opened, failed string
	about          func(address, W) []any
	// eager says to try failed addresses again after each change of what is wanted, too. The answers of health ports
	// change too often for that.
	eager bool
}

// listeners has a listener on each address that Services want in a snapshot that is in force. A listener stays as long
// as any Service wants its address.
type listeners[W any] struct {
	config Config
	kind   kind[W]

	// Only Run uses these. failed has the wanted addresses that are not open, with the reason.
	active map[address]listener[W]
	failed map[address]string

	tasks  sync.WaitGroup    // that serve clients
	broken chan breakdown[W] // listeners that ended by themselves
	wake   chan struct{}     // holds one token while Run does not know of a change of what is wanted

	mu sync.Mutex // of the families
}

type breakdown[W any] struct {
	listener listener[W]
	err      error
}

func newListeners[W any](c Config, k kind[W]) *listeners[W] {
	if c.Observe == nil {
		c.Observe = func(int, int) {}
	}
	if c.Within == nil {
		c.Within = func(open func() error) error { return open() }
	}
	return &listeners[W]{
		config: c, kind: k, active: map[address]listener[W]{}, failed: map[address]string{},
		broken: make(chan breakdown[W]), wake: make(chan struct{}, 1),
	}
}

// Notify takes note of a sync. The listeners of a family follow only a snapshot that is in force there. Notify never
// blocks; of several syncs the latest counts. It wakes Run only if what is wanted changes: few changes of a cluster do
// that.
func (s *listeners[W]) Notify(latest proxy.Sync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for i, f := range ip.Families() {
		if latest.InForce(f) && s.kind.families[i].update(latest.Snapshot, latest.Quarantined) {
			changed = true
		}
	}
	if !changed {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run listens and serves until the context ends. It returns nil, after what serves clients has ended too.
func (s *listeners[W]) Run(ctx context.Context) error {
	var retry <-chan time.Time // while addresses have failed
	for {
		select {
		case <-ctx.Done():
			for at := range s.active {
				s.close(at)
			}
			s.tasks.Wait()
			return nil
		case <-s.wake:
			s.reconcile(ctx, s.kind.eager)
		case b := <-s.broken:
			s.closeBroken(b)
		case <-retry:
			retry = nil
			s.reconcile(ctx, true)
		}
		if len(s.failed) == 0 {
			retry = nil
		} else if retry == nil {
			retry = time.After(retryPeriod)
		}
		s.config.Observe(len(s.active), len(s.failed))
	}
}

// wanted returns what the addresses of both families are wanted for.
func (s *listeners[W]) wanted() map[address]W {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[address]W{}
	for _, f := range s.kind.families {
		maps.Copy(wanted, f.wants())
	}
	return wanted
}

// reconcile closes the listeners that are not wanted and opens those that are missing. It tries failed addresses again
// if retry is set, or if it closes a listener, which may have been in the way.
func (s *listeners[W]) reconcile(ctx context.Context, retry bool) {
	wanted := s.wanted()
	// The closing comes first: a listener on all addresses is in the way of one on a single address.
	for at := range s.active {
		if _, ok := wanted[at]; !ok {
			s.close(at)
			retry = true
		}
	}
	maps.DeleteFunc(s.failed, func(at address, _ string) bool {
		_, ok := wanted[at]
		return !ok
	})
	// In order, so that equal failures give equal logs.
	for _, at := range slices.SortedFunc(maps.Keys(wanted), address.compare) {
		if l := s.active[at]; l != nil {
			l.set(wanted[at])
		} else if _, failed := s.failed[at]; !failed || retry {
			s.add(ctx, at, wanted[at])
		}
	}
}

func (s *listeners[W]) add(ctx context.Context, at address, w W) {
	var l listener[W]
	err := s.config.Within(func() (err error) {
		l, err = s.kind.open(ctx, at, w)
		return err
	})
	log := s.config.Log.With(s.kind.about(at, w)...)
	before, failed := s.failed[at]
	if err != nil {
		if s.failed[at] = err.Error(); before != err.Error() {
			log.Warn(s.kind.failed, "retry", retryPeriod, "err", err)
		}
		return
	}
	delete(s.failed, at)
	level := slog.LevelDebug
	if failed {
		level = slog.LevelInfo // The log has a warning that it did not listen.
	}
	log.Log(ctx, level, s.kind.opened)
	s.active[at] = l
}

// closeBroken closes a listener that broke; reconcile opens it again.
func (s *listeners[W]) closeBroken(b breakdown[W]) {
	for at, l := range s.active {
		if l == b.listener {
			s.close(at)
			s.failed[at] = b.err.Error()
		}
	}
}

func (s *listeners[W]) close(at address) {
	s.active[at].stop()
	delete(s.active, at)
}

// option is an option of a socket.
type option struct{ level, name, value int }

// setOptions returns a function that sets options before a socket is bound (net.ListenConfig, net.Dialer).
func setOptions(options ...option) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			for _, o := range options {
				failed = errors.Join(failed, unix.SetsockoptInt(int(fd), o.level, o.name, o.value))
			}
		})
		return errors.Join(err, failed)
	}
}
