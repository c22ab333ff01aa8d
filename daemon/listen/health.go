package listen

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/health"
	"nftproxy/model/ip"
	"nftproxy/model/service"
)

const (
	// maxHealthConnections is how many connections a port has at once, and maxOfClient how many of them one client has.
	// maxOfAll and maxOfClientAtAll are for all ports together: a load balancer keeps one to each port.
	maxHealthConnections, maxOfClient = 128, 32
	maxOfAll, maxOfClientAtAll        = 4096, 2048
)

// HealthPorts has one HTTP server for each health port and address.
type HealthPorts struct {
	*listeners[answer]
	healthy func() bool
	listen  func(context.Context, netip.AddrPort) (net.Listener, error)
	crowd   *health.Bound // on the connections of all ports
}

// NewHealthPorts makes health ports without listeners. healthy says whether the proxy works in all families; if not,
// every port answers 503. It must be safe for concurrent use.
func NewHealthPorts(c Config, healthy func() bool) *HealthPorts {
	h := &HealthPorts{healthy: healthy, listen: listenFree, crowd: health.NewBound(maxOfAll, maxOfClientAtAll)}
	h.listeners = newListeners(c, kind[answer]{
		families: ip.PerFamily[follower[answer]]{newHealthIndex(c.NodePortAddresses, ip.V4),
			newHealthIndex(c.NodePortAddresses, ip.V6)},
		open:   h.open,
		opened: "listening on a health check node port",
		failed: "cannot listen on a health check node port, trying again",
		about:  func(at address, a answer) []any { return []any{"service", a.service, "address", at.at} },
	})
	return h
}

// HealthHandlers returns the handlers for a snapshot that is in force in both families, by
// the address of the listener. The unspecified address stands for all of its family.
func HealthHandlers(nodePorts service.NodePortAddresses, s service.Snapshot,
	healthy func() bool) map[netip.AddrPort]http.Handler {
	handlers := map[netip.AddrPort]http.Handler{}
	for _, family := range ip.Families() {
		x := newHealthIndex(nodePorts, family)
		x.update(s, nil)
		for at, a := range x.wanted {
			p := &healthPort{healthy: healthy}
			p.set(a)
			handlers[at.at] = p
		}
	}
	return handlers
}

// listenFree opens a socket on one address, or on all addresses of a family. The node need not have the address yet
// (IP_FREEBIND): the kernel does not bind a new IPv6 address while it checks for duplicates, and an address of the Node
// may come to an interface later.
func listenFree(ctx context.Context, addr netip.AddrPort) (net.Listener, error) {
	network, free := "tcp4", option{unix.SOL_IP, unix.IP_FREEBIND, 1}
	if addr.Addr().Is6() {
		network, free = "tcp6", option{unix.SOL_IPV6, unix.IPV6_FREEBIND, 1}
	}
	config := net.ListenConfig{Control: setOptions(free)}
	config.SetMultipathTCP(false) // Not every kernel has IP_FREEBIND for such a socket.
	return config.Listen(ctx, network, addr.String())
}

type healthPort struct {
	ports   *HealthPorts
	at      netip.AddrPort
	healthy func() bool
	answer  atomic.Pointer[answer]
	socket  net.Listener
	server  *http.Server
}

func (h *HealthPorts) open(ctx context.Context, at address, a answer) (listener[answer], error) {
	l, err := h.listen(ctx, at.at)
	if err != nil {
		return nil, err
	}
	log := h.config.Log
	l = health.LimitConnections(l, func(client net.Addr) {
		log.Warn("closed a connection to a health check node port: too many are open", "address", at.at, "client",
			client.String(),
			"most", maxHealthConnections, "most_of_a_client", maxOfClient, "most_of_all_ports", maxOfAll)
	}, health.NewBound(maxHealthConnections, maxOfClient), h.crowd)
	p := &healthPort{ports: h, at: at.at, healthy: h.healthy, socket: l}
	p.set(a)
	p.server = health.HTTPServer(p, log)
	p.server.DisableGeneralOptionsHandler = true
	go func() {
		err := p.server.Serve(l)
		if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
			return
		}
		log.Warn("a health check node port broke, trying again", "service", p.answer.Load().service, "address", p.at, "retry",
			retryPeriod, "err", err)
		// Run does not wait for a port that breaks, so this may wait for Run.
		select {
		case h.broken <- breakdown[answer]{p, err}:
		case <-ctx.Done():
		}
	}()
	return p, nil
}

func (p *healthPort) set(a answer) { p.answer.Store(&a) }

// stop gives the requests under way a moment to end. The server may sleep while the process has no descriptors, so
// nothing waits for it.
func (p *healthPort) stop() {
	p.ports.config.Log.Debug("no longer listening on a health check node port", "address", p.at)
	_ = p.socket.Close()
	p.ports.tasks.Go(func() { health.Shutdown(p.server) })
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
func (p *healthPort) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
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
