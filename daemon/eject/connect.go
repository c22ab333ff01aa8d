package eject

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"nftproxy/model/ejection"
)

// connect tries to connect to an endpoint.
func connect(ctx context.Context, t ejection.Target) ejection.Answer {
	dialer := net.Dialer{Timeout: ejection.Patience, KeepAlive: -1}
	conn, err := dialer.DialContext(ctx, "tcp", t.Addr.String())
	if err != nil {
		return classify(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // A reset leaves no state behind, here or there.
	}
	_ = conn.Close()
	return ejection.Answered
}

// classify says what an error of connect(2) tells of the endpoint.
func classify(err error) ejection.Answer {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return ejection.Answered
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return ejection.Unanswered
	}
	if timeout := (net.Error)(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return ejection.Unanswered
	}
	return ejection.Unknown // such as EMFILE, or EPERM of a local rule
}
