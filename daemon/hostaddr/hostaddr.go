// Package hostaddr promises the addresses on the node's interfaces, at the start and
// after every change. It does not decide which of them serve node ports
// (model/service does).
package hostaddr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// retryPeriod is the time after which a lost subscription is made anew.
	retryPeriod = time.Second
	// triesInARow is how often an interrupted dump is repeated at once: a dump is
	// short, and the change that interrupts it is over.
	triesInARow = 10
	// shortestWait and longestWait bound the wait between two such rows of tries.
	shortestWait, longestWait = 5 * time.Millisecond, time.Second
)

// Follow calls observe with all addresses of its caller's network namespace, sorted:
// first at once, then after each change. When the context ends it returns nil and
// leaves nothing behind.
//
// The kernel drops notices that are not read fast enough. So each notice leads to a
// new list, and Follow renews a lost subscription. It logs a failure as a warning, but
// not again while the failure is the same. A list that a change interrupts is no
// failure.
func Follow(ctx context.Context, log *slog.Logger, observe func([]netip.Addr)) error {
	var last []netip.Addr
	failure := ""
	for {
		if err := follow(ctx, func(addrs []netip.Addr) {
			if last == nil || !slices.Equal(last, addrs) {
				last = addrs
				observe(addrs)
			}
		}); err != nil && ctx.Err() == nil && err.Error() != failure {
			failure = err.Error()
			log.Warn("following the node's addresses", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryPeriod):
		}
	}
}

func follow(ctx context.Context, observe func([]netip.Addr)) error {
	s, err := subscribe()
	if err != nil {
		return fmt.Errorf("subscribe to addresses: %w", err)
	}
	defer s.end()
	for {
		addrs, err := List(ctx)
		if err != nil {
			return err
		}
		observe(addrs)
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case err := <-s.lost:
			return fmt.Errorf("receive addresses: %w", err)
		}
	}
}

// List returns the addresses on all interfaces of its caller's network namespace,
// sorted, each once. The kernel interrupts a dump during which an address changes, and
// the dump is then incomplete. List repeats it, at first at once and later after
// ever longer waits, until the context ends.
func List(ctx context.Context) ([]netip.Addr, error) {
	return listWith(ctx, dump)
}

// listWith is List with the dump as an argument.
func listWith(ctx context.Context, dump func() ([]netip.Addr, error)) ([]netip.Addr, error) {
	wait := shortestWait
	for try := 1; ; try++ {
		addrs, err := dump()
		if err == nil {
			slices.SortFunc(addrs, netip.Addr.Compare)
			return slices.Compact(addrs), nil
		}
		if err = fmt.Errorf("list addresses: %w", err); !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		if try%triesInARow != 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
			wait = min(2*wait, longestWait)
		}
	}
}

// dump asks the kernel once for each family: a dump of both takes longer, and a
// change of either would interrupt all of it.
func dump() ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := netlink.AddrList(nil, family)
		if err != nil {
			return nil, err
		}
		for _, a := range found {
			if addr, ok := netip.AddrFromSlice(a.IP); ok {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	return addrs, nil
}
