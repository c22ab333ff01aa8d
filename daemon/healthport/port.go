package healthport

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/health"
	"nftproxy/model/ip"
	"nftproxy/model/service"
)

const (
	// grace is how long requests under way may take after their port was closed.
	grace = 2 * time.Second
	// headerTimeout is how long a client may take for the headers of its request.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection may wait for its next request. Load
	// balancers ask every few seconds.
	idleTimeout = 2 * time.Minute
	// headerBytes is how long these headers may be. net/http adds 4 KiB.
	headerBytes = 12 << 10
	// maxConnections is how many connections a port has at once, and maxOfClient how many of them one
	// client has. maxOfAll and maxOfClientAtAll are for all ports together: a load balancer keeps one to
	// each port.
	maxConnections, maxOfClient = 128, 32
	maxOfAll, maxOfClientAtAll  = 4096, 2048
)

// listen opens a socket on one address, or on all addresses of a family. The node need
// not have the address yet (IP_FREEBIND): the kernel does not bind a new IPv6 address
// while it checks for duplicates, and an address of the Node may come to an interface
// later.
func listen(ctx context.Context, addr netip.AddrPort) (net.Listener, error) {
	network, level, option := "tcp4", unix.SOL_IP, unix.IP_FREEBIND
	if addr.Addr().Is6() {
		network, level, option = "tcp6", unix.SOL_IPV6, unix.IPV6_FREEBIND
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, 1) })
		return errors.Join(err, failed)
	}}
	config.SetMultipathTCP(false) // Not every kernel has IP_FREEBIND for such a socket.
	return config.Listen(ctx, network, addr.String())
}

// port answers on one listener.
type port struct {
	answer  atomic.Pointer[answer]
	healthy func() bool
	server  *http.Server
	// served is closed when the listener is closed.
	served chan struct{}
}

// Handlers returns the handlers for a snapshot that is in force in both families, by
// the address of the listener. The unspecified address stands for all of its family.
func Handlers(nodePorts service.NodePortAddresses, s service.Snapshot, healthy func() bool) map[netip.AddrPort]http.Handler {
	handlers := map[netip.AddrPort]http.Handler{}
	for _, family := range ip.Families() {
		x := newIndex(nodePorts, family)
		x.update(s, nil)
		for at, a := range x.wanted {
			p := &port{healthy: healthy}
			p.answer.Store(&a)
			handlers[at] = p
		}
	}
	return handlers
}

// serve starts to answer. It calls broken if the listener ends by itself.
func serve(l net.Listener, a answer, healthy func() bool, log *slog.Logger, broken func(*port, error)) *port {
	p := &port{healthy: healthy, served: make(chan struct{})}
	p.answer.Store(&a)
	p.server = &http.Server{
		Handler:                      p,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout,
		IdleTimeout:                  idleTimeout,
		ConnState:                    health.ConnState,
		MaxHeaderBytes:               headerBytes,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	go func() {
		err := p.server.Serve(l)
		close(p.served)
		if !errors.Is(err, http.ErrServerClosed) {
			broken(p, err)
		}
	}()
	return p
}

// stop frees the address before it returns. It calls done when the requests under way
// have ended too.
func (p *port) stop(done func()) {
	go func() {
		defer done()
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if p.server.Shutdown(ctx) != nil {
			_ = p.server.Close()
		}
	}()
	<-p.served
}

// body is the answer in the form of kube-proxy v1.36.
type body struct {
	Service             serviceBody `json:"service"`
	LocalEndpoints      int         `json:"localEndpoints"`
	ServiceProxyHealthy bool        `json:"serviceProxyHealthy"`
}

type serviceBody struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// ServeHTTP answers every path and method alike: 200 if the node has endpoints of its
// own, or serves clients by those of other nodes as the Service asks, and the proxy works; else 503.
func (p *port) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a, healthy := p.answer.Load(), p.healthy()
	code := http.StatusServiceUnavailable
	if a.serves && healthy {
		code = http.StatusOK
	}
	namespace, name := service.Name.Split(a.service)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(a.local))
	w.WriteHeader(code)
	// An error here means that the client has gone away.
	_ = json.NewEncoder(w).Encode(body{serviceBody{namespace, name}, a.local, healthy})
}
