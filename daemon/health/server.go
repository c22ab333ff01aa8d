package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	// retryPeriod is the time between two attempts to listen, as in kube-proxy.
	retryPeriod = 5 * time.Second
	// requiredWithin is how long Run tries to listen at an address that is required.
	// Short-lived connections may have its port as their own.
	requiredWithin = time.Minute
	// grace is how long requests under way may take after the end.
	grace = 2 * time.Second
	// headerTimeout is how long a client may take for the headers of its request.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection may wait for its next request. Load balancers ask every few seconds.
	idleTimeout = 2 * time.Minute
	// headerBytes is how long these headers may be. net/http adds 4 KiB.
	headerBytes = 12 << 10
	// maxConnections is how many connections a server has at once, and maxOfClient how many of them one
	// client has. A connection costs some 10 KB and a file descriptor, of which the proxy needs some itself.
	maxConnections, maxOfClient = 512, 64
)

// Server serves HTTP on one address. If it cannot listen there, it tries again every
// five seconds: another process may have the port, or the node may get the address
// later. The log has one warning for that, and one line once the server listens.
type Server struct {
	// Failed is called with the error that keeps the server from serving, once for
	// several equal ones in a row; nil calls nothing.
	Failed func(error)

	name, addr string
	handler    http.Handler
	log        *slog.Logger
	required   bool
	// certificate is nil for a server without TLS.
	certificate *Certificate
	listen      func(ctx context.Context, network, addr string) (net.Listener, error)
}

// NewServer makes a server; messages have its name. A server with an empty address never listens. An address that is
// not HOST:PORT is an error; an empty host stands for all addresses.
func NewServer(name, addr string, handler http.Handler, log *slog.Logger) (*Server, error) {
	if err := CheckAddress(addr); err != nil {
		return nil, fmt.Errorf("%s server: %w", name, err)
	}
	return &Server{name: name, addr: addr, handler: handler, log: log, listen: new(net.ListenConfig).Listen}, nil
}

// Require makes Run return an error where the server has not listened within a minute. It
// is for an address at which another process must not answer in the server's place. In
// that minute everything else goes on, so a node gets its first program all the same.
func (s *Server) Require() { s.required = true }

// ServeTLS makes the server serve HTTPS only, with HTTP/1.1. It does not listen before there is a certificate.
func (s *Server) ServeTLS(c *Certificate) { s.certificate = c }

// CheckAddress returns an error, in words, if a Server cannot have the address. An empty address is no error.
func CheckAddress(addr string) error {
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not ADDRESS:PORT, such as 127.0.0.1:10249 or [::]:10256", addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: the port %q is not in 0 to 65535", addr, port)
	}
	return nil
}

// Run serves until the context ends and returns nil. Requests under way at the end have two seconds more.
func (s *Server) Run(ctx context.Context) error {
	if s.addr == "" {
		<-ctx.Done()
		return nil
	}
	last, served := "", false
	began := time.Now()
	for {
		l, err := s.open(ctx)
		if err == nil {
			s.logServing(ctx, l.Addr(), last != "")
			served = true
			err = s.serve(ctx, l)
		}
		if ctx.Err() != nil {
			return nil
		}
		if s.required && !served && time.Since(began) >= requiredWithin {
			return fmt.Errorf("%s server: %w", s.name, err)
		}
		// The log has the first of several equal failures. A server that listened in between ends with a different one.
		if err.Error() != last {
			s.log.Warn("cannot serve, trying again", "server", s.name, "address", s.addr, "retry", retryPeriod, "err", err)
			if s.Failed != nil {
				s.Failed(err)
			}
		}
		last = err.Error()
		select {
		case <-ctx.Done():
			return nil
		case <-s.firstCertificate(err):
		case <-time.After(retryPeriod):
		}
	}
}

// open listens, once there is what it takes to answer.
func (s *Server) open(ctx context.Context) (net.Listener, error) {
	if s.certificate != nil {
		if err := s.certificate.missing(); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoCertificate, err)
		}
	}
	return s.listen(ctx, "tcp", s.addr)
}

// firstCertificate is closed when a server that failed for want of a certificate has one; nil where it failed
// otherwise.
func (s *Server) firstCertificate(failure error) <-chan struct{} {
	if !errors.Is(failure, errNoCertificate) {
		return nil
	}
	return s.certificate.first
}

// logServing logs that the server listens. warned says that the log has a warning about the address.
func (s *Server) logServing(ctx context.Context, at net.Addr, warned bool) {
	level := slog.LevelDebug
	if warned {
		level = slog.LevelInfo
	}
	s.log.Log(ctx, level, "serving", "server", s.name, "address", at.String())
}

// serve returns nil when the context and all requests have ended, or the error that keeps it from going on.
func (s *Server) serve(ctx context.Context, l net.Listener) error {
	l = LimitConnections(l, s.tooMany, NewBound(maxConnections, maxOfClient))
	server := HTTPServer(s.handler, s.log)
	stopped := make(chan struct{})
	cancelStop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		Shutdown(server)
	})
	serve := server.Serve
	if s.certificate != nil {
		server.TLSConfig = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.certificate.current.Load(), nil
		}}
		// One connection is one request at a time: the bounds count connections.
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true)
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	err := serve(l)
	if !cancelStop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	// The listener is broken, but its connections may not be.
	_ = server.Close()
	return err
}

// HTTPServer returns a server for a listener of LimitConnections, with the bounds on headers and idle connections that
// all servers of the process have.
func HTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ConnState:         ConnState,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Shutdown ends a server. Requests under way have two seconds more.
func Shutdown(s *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		_ = s.Close()
	}
}

// tooMany logs that a connection had to go. The log is bounded where many lines are alike.
func (s *Server) tooMany(client net.Addr) {
	s.log.Warn("closed a connection: too many are open", "server", s.name, "client", client.String(), "most",
		maxConnections, "most_of_a_client", maxOfClient)
}
