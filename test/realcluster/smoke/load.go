package smoke

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// load is traffic from outside: connections to the node port of web on some
// nodes, without end and with a request each.
type load struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	ok      int
	slow    int // took longer than a second: a lost packet at the least
	longest time.Duration
	errs    []error
}

// Each node gets requests from this many clients, each after a pause.
const (
	clientsPerNode = 2
	betweenAsks    = 10 * time.Millisecond
)

// startLoad starts traffic to nodes.
func (f *fixture) startLoad(ctx context.Context, nodes ...string) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{stop: cancel}
	for _, node := range nodes {
		to := netip.AddrPortFrom(f.Addrs(node)[0], f.port)
		for range clientsPerNode {
			l.done.Go(func() { l.run(ctx, f, to) })
		}
	}
	return l
}

func (l *load) run(ctx context.Context, f *fixture, to netip.AddrPort) {
	tick := time.NewTicker(betweenAsks)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		// A request that has begun is not cut by the end of the load.
		_, err := f.get(context.WithoutCancel(ctx), to, "/hostname")
		l.note(time.Since(began), to, err)
	}
}

func (l *load) note(took time.Duration, to netip.AddrPort, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, took)
	switch {
	case err != nil:
		l.errs = append(l.errs, fmt.Errorf("at %s %v after %v: %w", time.Now().Format("15:04:05.000"), to, took.Round(time.Millisecond), err))
	case took > time.Second:
		l.slow++
		fallthrough
	default:
		l.ok++
	}
}

// leastRequests is how many requests a load must have made to say anything.
const leastRequests = 100

// end stops the traffic and says how it went. An error is a request that failed.
func (l *load) end() (string, error) {
	l.stop()
	l.done.Wait()
	seen := fmt.Sprintf("%d of %d requests failed, %d took longer than a second, the longest %v",
		len(l.errs), l.ok+len(l.errs), l.slow, l.longest.Round(time.Millisecond))
	if l.ok < leastRequests {
		l.errs = append(l.errs, fmt.Errorf("only %d requests went well", l.ok))
	}
	if len(l.errs) == 0 {
		return seen, nil
	}
	return "", fmt.Errorf("%s; the first: %w", seen, errors.Join(l.errs[:min(5, len(l.errs))]...))
}

// under runs an action while traffic goes to nodes.
func (f *fixture) under(ctx context.Context, nodes []string, action func() error) (string, error) {
	l := f.startLoad(ctx, slices.Clone(nodes)...)
	failed := action()
	seen, err := l.end()
	return seen, errors.Join(failed, err)
}
