package eject

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"nftproxy/model/ejection"
)

// late is how much longer than its patience a connect may take: more says that this process had no CPU time.
const late = ejection.Patience / 2

// Dead asks an endpoint for an answer: it reports that two connects of the node's own had none, one after the other. A
// refusal is an answer. Each takes its second, also if there is no route: a route may be away for a moment.
func Dead(ctx context.Context, endpoint netip.AddrPort) bool {
	for range 2 {
		over := time.After(ejection.Patience)
		if connectOne(ctx, endpoint) != ejection.Unanswered {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-over:
		}
	}
	return true
}

// connect tries to connect to addresses at once. One answer is enough.
func connect(ctx context.Context, to []netip.AddrPort) ejection.Answer {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan ejection.Answer, len(to))
	for _, a := range to {
		go func() { answers <- connectOne(ctx, a) }()
	}
	best := ejection.Unknown
	for range to {
		switch <-answers {
		case ejection.Answered:
			return ejection.Answered
		case ejection.Unanswered:
			best = ejection.Unanswered
		}
	}
	return best
}

func connectOne(ctx context.Context, to netip.AddrPort) ejection.Answer {
	dialer := net.Dialer{Timeout: ejection.Patience, KeepAlive: -1}
	began := time.Now()
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return inTime(classify(err), time.Since(began))
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // A reset leaves no state behind, here or there.
	}
	_ = conn.Close()
	return ejection.Answered
}

// inTime says what an answer tells if this process has learned it so late. One that was stopped or got no CPU time
// finds its time over, whatever has come meanwhile.
func inTime(a ejection.Answer, took time.Duration) ejection.Answer {
	if a == ejection.Unanswered && took > ejection.Patience+late {
		return ejection.Unknown
	}
	return a
}

// classify says what an error of connect(2) tells of the endpoint.
func classify(err error) ejection.Answer {
	var failure net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return ejection.Answered
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH),
		errors.Is(err, syscall.EINVAL), // a blackhole route, such as Calico's for the pods of the node that are no more
		errors.As(err, &failure) && failure.Timeout():
		return ejection.Unanswered
	}
	return ejection.Unknown // such as EMFILE, or EPERM of a local rule
}
