// Package hostaddr promises the addresses on the node's interfaces, now and
// whenever they change. It does not judge which of them serve node ports
// (internal/service does).
package hostaddr

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// retryPeriod is the time after which a lost subscription is made anew.
const retryPeriod = time.Second

// Follow calls tell with all addresses of the network namespace it is called
// in, sorted, first at once and then after each change, until the context ends;
// it returns nil then. The kernel drops notices that are not read fast enough;
// so each notice leads to a fresh listing, and a lost subscription is renewed.
// What goes wrong is logged as a warning, once as long as it is the same.
func Follow(ctx context.Context, log *slog.Logger, tell func([]netip.Addr)) error {
	var last []netip.Addr
	failure := ""
	for {
		if err := follow(ctx, func(addrs []netip.Addr) {
			if last == nil || !slices.Equal(last, addrs) {
				last = addrs
				tell(addrs)
			}
		}); err != nil && err.Error() != failure {
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

func follow(ctx context.Context, tell func([]netip.Addr)) error {
	updates := make(chan netlink.AddrUpdate, 64)
	failed := make(chan error, 1)
	done := make(chan struct{})
	defer close(done)
	err := netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		return fmt.Errorf("subscribe to addresses: %w", err)
	}
	for {
		addrs, err := List()
		if err != nil {
			return err
		}
		tell(addrs)
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("receive addresses: %w", err)
		case _, ok := <-updates:
			if !ok {
				return fmt.Errorf("receive addresses: the subscription ended")
			}
		}
	}
}

// List returns the addresses on all interfaces, sorted, each once.
func List() ([]netip.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}
