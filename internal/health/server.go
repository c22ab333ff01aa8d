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
	// retryPeriod is kube-proxy's between two attempts to listen.
	retryPeriod = 5 * time.Second
	// grace is how long requests may take that are under way at the end.
	grace = 2 * time.Second
	// headerTimeout is how long a client may take for its request.
	headerTimeout = 10 * time.Second
)

// Server serves HTTP on one address. An address that cannot be listened on is
// tried again every five seconds: another process may have the port now, or the
// address may be on its way to the node.
type Server struct {
	name, addr string
	handler    http.Handler
	log        *slog.Logger
	listen     func(ctx context.Context, network, addr string) (net.Listener, error)
}

// NewServer makes a server, called by the name in messages. An empty address
// makes one that never listens; one that is no HOST:PORT is an error. The host
// may be empty for all addresses.
func NewServer(name, addr string, handler http.Handler, log *slog.Logger) (*Server, error) {
	if addr != "" {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("%s server: %w", name, err)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return nil, fmt.Errorf("%s server: address %s: port: %w", name, addr, err)
		}
	}
	return &Server{name, addr, handler, log, new(net.ListenConfig).Listen}, nil
}

// Run serves until the context ends; requests that are under way then have two
// seconds more. It returns nil.
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
		// Listening, which ends with another error, is news, and so is that it
		// fails; that it still does is not.
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

// listenAndServe returns when the context has ended and every request has, or
// with the reason why it cannot go on.
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
	forget := context.AfterFunc(ctx, func() {
		defer close(stopped)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if server.Shutdown(end) != nil {
			_ = server.Close()
		}
	})
	err = server.Serve(l)
	if !forget() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	// The listener is broken; connections that it has made need not be.
	_ = server.Close()
	return err
}
