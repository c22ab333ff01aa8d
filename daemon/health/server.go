package health

import (
	"context"
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
	// grace is how long requests under way may take after the end.
	grace = 2 * time.Second
	// headerTimeout is how long a client may take for the headers of its request.
	headerTimeout = 10 * time.Second
)

// Server serves HTTP on one address. If it cannot listen there, it tries again every
// five seconds: another process may have the port, or the node may get the address
// later.
type Server struct {
	name, addr string
	handler    http.Handler
	log        *slog.Logger
	listen     func(ctx context.Context, network, addr string) (net.Listener, error)
}

// NewServer makes a server; messages have its name. A server with an empty address
// never listens. An address that is not HOST:PORT is an error; an empty host stands
// for all addresses.
func NewServer(name, addr string, handler http.Handler, log *slog.Logger) (*Server, error) {
	if err := CheckAddress(addr); err != nil {
		return nil, fmt.Errorf("%s server: %w", name, err)
	}
	return &Server{name, addr, handler, log, new(net.ListenConfig).Listen}, nil
}

// CheckAddress returns an error, in words, if a Server cannot have the address. An
// empty address is no error.
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

// Run serves until the context ends and returns nil. Requests under way at the end
// have two seconds more.
func (s *Server) Run(ctx context.Context) error {
	if s.addr == "" {
		<-ctx.Done()
		return nil
	}
	last := ""
	for {
		err := s.listenAndServe(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// The first of several equal failures is an error in the log. A server that
		// listened in between ends with a different one.
		level := slog.LevelError
		if err.Error() == last {
			level = slog.LevelDebug
		}
		last = err.Error()
		s.log.Log(ctx, level, "cannot serve, trying again", "server", s.name, "address", s.addr, "retry", retryPeriod, "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryPeriod):
		}
	}
}

// listenAndServe returns nil when the context and all requests have ended, or the
// error that keeps it from going on.
func (s *Server) listenAndServe(ctx context.Context) error {
	l, err := s.listen(ctx, "tcp", s.addr)
	if err != nil {
		return err
	}
	s.log.Debug("serving", "server", s.name, "address", l.Addr().String())
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: headerTimeout,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	cancelStop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if server.Shutdown(end) != nil {
			_ = server.Close()
		}
	})
	err = server.Serve(l)
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
