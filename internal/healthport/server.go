package healthport

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"nftproxy/internal/proxy"
	"nftproxy/internal/service"
	"nftproxy/nft"
)

// retryPeriod is the time after which an address that could not be listened on
// is tried again, if nothing happens before.
const retryPeriod = 5 * time.Second

// Config says where to listen and what to answer.
type Config struct {
	// NodePortAddresses says on which of the node's addresses.
	NodePortAddresses service.NodePortAddresses
	// Healthy says whether the proxy works in all families; without that no
	// port is well, whatever endpoints there are. It must be safe for
	// concurrent use.
	Healthy func() bool
	// Observe is told after each change how many listeners there are, and how
	// many there ought to be besides. Nil drops it.
	Observe func(open, failed int)
	// Within runs what opens sockets, in another network namespace for example.
	// Nil runs it as it is.
	Within func(func() error) error
	// Log is told of an address that cannot be listened on, once.
	Log *slog.Logger
}

// Server keeps one HTTP server for each health port and address. A listener
// stays for as long as its address and port are wanted, whosever they are.
type Server struct {
	config Config
	listen func(context.Context, netip.AddrPort) (net.Listener, error)

	// What Run works on.
	families [2]*index
	ports    map[netip.AddrPort]*port
	// failed holds why what is wanted is not open.
	failed map[netip.AddrPort]string
	// ending counts ports that are closed and have requests under way.
	ending sync.WaitGroup
	broken chan breakdown

	wake   chan struct{} // holds one token while there is something in latest
	mu     sync.Mutex
	latest [2]*state
}

// state is what is in force in one family.
type state struct {
	snapshot service.Snapshot
	refused  map[string]error
}

// breakdown is a listener that ended by itself.
type breakdown struct {
	port *port
	err  error
}

// New makes a server without listeners.
func New(c Config) *Server {
	if c.Observe == nil {
		c.Observe = func(int, int) {}
	}
	s := &Server{
		config: c, listen: listenWithin(c.Within), broken: make(chan breakdown),
		ports: map[netip.AddrPort]*port{}, failed: map[netip.AddrPort]string{},
		wake: make(chan struct{}, 1),
	}
	for i, f := range nft.Families() {
		s.families[i] = newIndex(c.NodePortAddresses, f == nft.IPv6)
	}
	return s
}

func listenWithin(within func(func() error) error) func(context.Context, netip.AddrPort) (net.Listener, error) {
	if within == nil {
		return listen
	}
	return func(ctx context.Context, addr netip.AddrPort) (l net.Listener, err error) {
		err = within(func() error {
			l, err = listen(ctx, addr)
			return err
		})
		return l, err
	}
}

// Notify takes note of a turn of the loop: only what is in force is answered
// for. It never blocks; of several turns the latest counts.
func (s *Server) Notify(turn proxy.Sync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range nft.Families() {
		if turn.InForce(f) {
			s.latest[i] = &state{turn.Snapshot, turn.Quarantined}
		}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run listens and answers until the context ends; requests that are under way
// then have two seconds more. It returns nil.
func (s *Server) Run(ctx context.Context) error {
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	armed := false
	for {
		select {
		case <-ctx.Done():
			s.closeAll()
			return nil
		case <-s.wake:
			if !s.update() {
				continue
			}
			s.reconcile(ctx, false)
		case b := <-s.broken:
			s.drop(b)
		case <-retry.C:
			armed = false
			s.reconcile(ctx, true)
		}
		if failed := len(s.failed) > 0; failed && !armed {
			retry.Reset(retryPeriod)
			armed = true
		} else if !failed {
			retry.Stop()
			armed = false
		}
		s.config.Observe(len(s.ports), len(s.failed))
	}
}

// update takes what Notify left; false means that no answer changes.
func (s *Server) update() bool {
	s.mu.Lock()
	latest := s.latest
	s.latest = [2]*state{}
	s.mu.Unlock()
	changed := false
	for i, state := range latest {
		if state != nil && s.families[i].update(state.snapshot, state.refused) {
			changed = true
		}
	}
	return changed
}

// reconcile opens and closes what has to be. What failed is tried again if
// asked to, or if a listener goes, which may have been in the way.
func (s *Server) reconcile(ctx context.Context, again bool) {
	wanted := map[netip.AddrPort]answer{}
	for _, x := range s.families {
		maps.Copy(wanted, x.wanted)
	}
	// Closed first: a listener on all addresses is in the way of one on each.
	for addr, p := range s.ports {
		if _, ok := wanted[addr]; !ok {
			s.close(addr, p)
			again = true
		}
	}
	maps.DeleteFunc(s.failed, func(addr netip.AddrPort, _ string) bool {
		_, ok := wanted[addr]
		return !ok
	})
	// In order, so that logs of the same trouble read the same.
	for _, addr := range slices.SortedFunc(maps.Keys(wanted), netip.AddrPort.Compare) {
		if _, failed := s.failed[addr]; failed && !again {
			continue
		}
		s.ensure(ctx, addr, wanted[addr])
	}
}

// ensure makes the port on the address give the answer.
func (s *Server) ensure(ctx context.Context, addr netip.AddrPort, a answer) {
	if p := s.ports[addr]; p != nil {
		if *p.answer.Load() != a {
			p.answer.Store(&a)
		}
		return
	}
	before, failed := s.failed[addr]
	l, err := s.listen(ctx, addr)
	if err != nil {
		s.failed[addr] = err.Error()
		if err.Error() != before {
			s.config.Log.Warn("cannot listen on a health check node port, trying again",
				"service", a.service, "address", addr, "retry", retryPeriod, "err", err)
		}
		return
	}
	level := slog.LevelDebug
	if failed {
		delete(s.failed, addr)
		level = slog.LevelInfo // It has been said that it does not.
	}
	s.config.Log.Log(ctx, level, "listening on a health check node port", "service", a.service, "address", addr)
	s.ports[addr] = open(l, a, s.config.Healthy, s.config.Log, func(p *port, err error) {
		// Only Run closes ports, and it does not wait for this one.
		select {
		case s.broken <- breakdown{p, err}:
		case <-ctx.Done():
		}
	})
}

// drop lets go of a port whose listener broke; it will be tried again.
func (s *Server) drop(b breakdown) {
	for addr, p := range s.ports {
		if p == b.port {
			s.config.Log.Warn("a health check node port broke, trying again",
				"service", p.answer.Load().service, "address", addr, "retry", retryPeriod, "err", b.err)
			s.close(addr, p)
			s.failed[addr] = b.err.Error()
		}
	}
}

func (s *Server) close(addr netip.AddrPort, p *port) {
	delete(s.ports, addr)
	s.config.Log.Debug("no longer listening on a health check node port", "address", addr)
	s.ending.Add(1)
	p.close(s.ending.Done)
}

func (s *Server) closeAll() {
	for addr, p := range s.ports {
		s.close(addr, p)
	}
	s.ending.Wait()
}
