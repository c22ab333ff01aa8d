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

	"nftproxy/daemon/health"
	"nftproxy/daemon/proxy"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// retryPeriod is the time after which the Server tries again to listen on an address.
// It also tries again when it closes another listener.
const retryPeriod = 5 * time.Second

// Config says where to listen and what to answer.
type Config struct {
	// NodePortAddresses says on which of the node's addresses to listen.
	NodePortAddresses service.NodePortAddresses
	// Healthy says whether the proxy works in all families. If not, every port
	// answers 503. It must be safe for concurrent use.
	Healthy func() bool
	// Observe is called after each change with the number of open listeners, and of
	// those that could not be opened. It may be nil.
	Observe func(open, failed int)
	// Within runs a function that opens a socket, for example in another network
	// namespace. Nil means to run it directly.
	Within func(func() error) error
	// Log has one warning for each address that the Server cannot listen on.
	Log *slog.Logger
}

// Server has one HTTP server for each health port and address. A listener stays as
// long as any Service wants its address and port.
type Server struct {
	config Config
	listen func(context.Context, netip.AddrPort) (net.Listener, error)

	// Only Run uses these.
	ports map[netip.AddrPort]*port
	crowd *health.Bound // on the connections of all ports
	// failed has the wanted addresses that are not open, with the reason.
	failed map[netip.AddrPort]string
	// ending counts the closed ports with requests under way.
	ending sync.WaitGroup
	broken chan breakdown

	wake chan struct{} // holds one token while Run does not know of an answer that has changed

	mu       sync.Mutex
	families ip.PerFamily[*index]
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
		ports: map[netip.AddrPort]*port{}, crowd: health.NewBound(maxOfAll, maxOfClientAtAll), failed: map[netip.AddrPort]string{},
		wake: make(chan struct{}, 1),
	}
	for i, f := range nft.Families() {
		s.families[i] = newIndex(c.NodePortAddresses, f)
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

// Notify takes note of a sync. The answers of a family follow only a snapshot that is
// in force there. Notify never blocks; of several syncs the latest counts. It wakes Run only if an
// answer changes: few changes of a cluster concern a health port.
func (s *Server) Notify(latest proxy.Sync) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for i, f := range nft.Families() {
		if latest.InForce(f) && s.families[i].update(latest.Snapshot, latest.Quarantined) {
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

// Run listens and answers until the context ends and returns nil. Requests under way
// at the end have two seconds more.
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
			s.reconcile(ctx, false)
		case b := <-s.broken:
			s.closeBroken(b)
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

// wanted returns the answers by the addresses of their listeners.
func (s *Server) wanted() map[netip.AddrPort]answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[netip.AddrPort]answer{}
	for _, x := range s.families {
		maps.Copy(wanted, x.wanted)
	}
	return wanted
}

// reconcile closes the listeners that are not wanted and opens those that are missing.
// It tries failed addresses again if retry is set, or if it closes a listener, which
// may have been in the way.
func (s *Server) reconcile(ctx context.Context, retry bool) {
	wanted := s.wanted()
	// The closing comes first: a listener on all addresses is in the way of one on
	// a single address.
	for addr, p := range s.ports {
		if _, ok := wanted[addr]; !ok {
			s.closePort(addr, p)
			retry = true
		}
	}
	maps.DeleteFunc(s.failed, func(addr netip.AddrPort, _ string) bool {
		_, ok := wanted[addr]
		return !ok
	})
	// In order, so that equal failures give equal logs.
	for _, addr := range slices.SortedFunc(maps.Keys(wanted), netip.AddrPort.Compare) {
		if _, failed := s.failed[addr]; failed && !retry {
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
		level = slog.LevelInfo // The log has a warning that it did not listen.
	}
	s.config.Log.Log(ctx, level, "listening on a health check node port", "service", a.service, "address", addr)
	l = health.LimitConnections(l, func(client net.Addr) {
		s.config.Log.Warn("closed a connection to a health check node port: too many are open", "address", addr, "client", client.String(),
			"most", maxConnections, "most_of_a_client", maxOfClient, "most_of_all_ports", maxOfAll)
	}, health.NewBound(maxConnections, maxOfClient), s.crowd)
	s.ports[addr] = serve(l, a, s.config.Healthy, s.config.Log, func(p *port, err error) {
		// Run does not wait for a port that breaks, so this may wait for Run.
		select {
		case s.broken <- breakdown{p, err}:
		case <-ctx.Done():
		}
	})
}

// closeBroken closes a port whose listener broke; reconcile opens it again.
func (s *Server) closeBroken(b breakdown) {
	for addr, p := range s.ports {
		if p == b.port {
			s.config.Log.Warn("a health check node port broke, trying again",
				"service", p.answer.Load().service, "address", addr, "retry", retryPeriod, "err", b.err)
			s.closePort(addr, p)
			s.failed[addr] = b.err.Error()
		}
	}
}

func (s *Server) closePort(addr netip.AddrPort, p *port) {
	delete(s.ports, addr)
	s.config.Log.Debug("no longer listening on a health check node port", "address", addr)
	s.ending.Add(1)
	p.stop(s.ending.Done)
}

func (s *Server) closeAll() {
	for addr, p := range s.ports {
		s.closePort(addr, p)
	}
	s.ending.Wait()
}
