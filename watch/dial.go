package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"
)

// The limits of a connection to the API server. Looking up its name has one of its own: by resolv.conf(5) the resolver
// waits 5 s for each nameserver that does not answer, twice, with up to three of them, and again for each search
// domain.
const (
	lookupLimit = time.Minute
	// connectLimit is for each address. With client-go's 30 s, the log would report a wrong address only after 30 s.
	connectLimit = 5 * time.Second
	// fallbackDelay is how long the addresses of the family that comes first have no rivals (RFC 6555; as in package net).
	fallbackDelay = 300 * time.Millisecond
	// silenceLimit is how long a peer may leave unacknowledged what was sent to it: requests, and probes of a connection
	// at rest (TCP_USER_TIMEOUT, tcp(7)). The first probe comes after probeIdle, the next ones each probeInterval. So a
	// load balancer or a machine that fails without a word is noticed within 20 s, while no process wakes; client-go's own
	// pings take 45 s.
	silenceLimit  = 15 * time.Second
	probeIdle     = 10 * time.Second
	probeInterval = 3 * time.Second
)

// connector connects to a host by its name or its address.
type connector struct {
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

func newConnector() connector {
	d := &net.Dialer{
		Timeout: connectLimit, Control: limitSilence,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeIdle, Interval: probeInterval},
	}
	return connector{net.DefaultResolver.LookupNetIP, d.DialContext}
}

// limitSilence sets silenceLimit for a connection.
func limitSilence(_, _ string, conn syscall.RawConn) error {
	var err error
	controlErr := conn.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silenceLimit.Milliseconds()))
	})
	return errors.Join(controlErr, err)
}

// connect connects to host:port. A net.Dialer has one limit for everything, so that a nameserver which does not answer
// would leave no time for the connection.
func (c connector) connect(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return c.dial(ctx, network, address)
	}
	soon, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addrs, err := c.lookup(soon, "ip", host)
	if err != nil {
		return nil, err
	}
	var groups [2][]string // the family of the first address, and the other one
	for _, a := range addrs {
		at := 0
		if a.Unmap().Is4() != addrs[0].Unmap().Is4() {
			at = 1
		}
		groups[at] = append(groups[at], net.JoinHostPort(a.Unmap().String(), port))
	}
	return c.race(ctx, network, groups)
}

// attempt is the end of an attempt by one family.
type attempt struct {
	conn net.Conn
	err  error
}

// race connects by both families, the second one a little later or when the first has failed. The first connection
// counts, or the first error.
func (c connector) race(ctx context.Context, network string, groups [2][]string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	attempts := make(chan attempt, len(groups))
	running := 0
	start := func(addresses []string) {
		if len(addresses) > 0 {
			running++
			go func() { attempts <- c.series(ctx, network, addresses) }()
		}
	}
	start(groups[0])
	later := time.NewTimer(fallbackDelay)
	defer later.Stop()
	var first error
	for running > 0 {
		select {
		case <-later.C:
			start(groups[1])
			groups[1] = nil
		case o := <-attempts:
			running--
			if o.err == nil {
				go closeOthers(attempts, running)
				return o.conn, nil
			}
			first = cmp.Or(first, o.err)
			start(groups[1])
			groups[1] = nil
		}
	}
	return nil, first
}

// closeOthers closes the connections of n attempts that came too late.
func closeOthers(attempts <-chan attempt, n int) {
	for range n {
		if o := <-attempts; o.err == nil {
			_ = o.conn.Close() // Nothing was written.
		}
	}
}

// series connects to the first address that answers. Its error is that of the first address, as in package net.
func (c connector) series(ctx context.Context, network string, addresses []string) attempt {
	var first error
	for _, address := range addresses {
		conn, err := c.dial(ctx, network, address)
		if err == nil {
			return attempt{conn: conn}
		}
		if first = cmp.Or(first, err); ctx.Err() != nil {
			break
		}
	}
	return attempt{err: first}
}

// dialer connects to the API server and reports the IP address of each connection,
// which a configuration with a host name does not have. It does not report a proxy's
// address.
type dialer struct {
	// open are the connections that are not closed.
	open *connrotation.ConnectionTracker
	// server is the host and port of the API server. Other connections go to a proxy
	// (HTTPS_PROXY, or proxy-url in the kubeconfig).
	server string

	// report gets the addresses, if it is set.
	report atomic.Pointer[func(netip.AddrPort)]
}

// newDialer makes a dialer for clients with this configuration.
func newDialer(config *rest.Config) (*dialer, error) {
	server, err := serverOf(config)
	return &dialer{open: connrotation.NewConnectionTracker(), server: server}, err
}

// serverOf returns the host and port of the API server.
func serverOf(config *rest.Config) (string, error) {
	u, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return "", fmt.Errorf("the API server's address %q: %w", config.Host, err)
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "http":
		port = "80"
	default:
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// DialContext dials as client-go does by default, but with other limits (connector).
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := newConnector().connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	report := d.report.Load()
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok && report != nil && strings.EqualFold(address, d.server) {
		(*report)(tcp.AddrPort())
	}
	return d.open.Track(conn), nil
}
