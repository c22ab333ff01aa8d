package hostaddr

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// maxNetworks is how many networks of the ranges are told apart.
	maxNetworks = 16384
	// shortestRest is the least time between two notices, and restShare how many times as long
	// as the last dump it is: a routing daemon may change routes all the time.
	shortestRest, restShare = 100 * time.Millisecond, 20
	// dumpPatience is how long In repeats a dump that changes interrupt.
	dumpPatience = time.Second
)

// Networks finds the networks of its caller's network namespace that lie in given ranges. It
// is safe for concurrent use.
type Networks struct {
	mu sync.Mutex
	// ranges are those of the last question, found is how many networks there were, and took
	// how long the dump took.
	ranges []netip.Prefix
	found  int
	took   time.Duration
}

// In returns the networks that overlap the ranges, as disjoint as routes are, sorted, each
// once. It looks at routes of all tables, since rules of the node may lead a packet to any:
//
//   - a network of an interface (a route that the kernel made for an address) counts, whatever
//     its size;
//   - any other route counts if it is for a part of a range only. A route for a whole range, or
//     for more, says nothing about hosts: programs make one to lead Services' packets
//     somewhere, and the default route is one, too.
//
// Routes that lead nowhere, such as blackholes, do not count. Where there are more than
// maxNetworks, or the routes cannot be read, In returns the ranges themselves; in the latter case
// with the error.
func (n *Networks) In(ctx context.Context, ranges []netip.Prefix) ([]netip.Prefix, error) {
	n.mu.Lock()
	n.ranges = ranges
	n.mu.Unlock()
	if len(ranges) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dumpPatience)
	defer cancel()
	start := time.Now()
	list, err := listWith(ctx, "routes", func() ([]netip.Prefix, error) { return dumpNetworks(ranges) })
	slices.SortFunc(list, netip.Prefix.Compare)
	if list = slices.Compact(list); err != nil || len(list) > maxNetworks {
		list = ranges
	}
	n.mu.Lock()
	n.found, n.took = len(list), time.Since(start)
	n.mu.Unlock()
	return list, err
}

func dumpNetworks(ranges []netip.Prefix) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for family, v6 := range map[int]bool{netlink.FAMILY_V4: false, netlink.FAMILY_V6: true} {
		if !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Addr().Is6() == v6 }) {
			continue
		}
		all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		err := netlink.RouteListFilteredIter(family, all, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if to, ok := destination(&r); ok && counts(&r, to, ranges) {
				list = append(list, to)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// destination is the network that a route is for; false for a default route.
func destination(r *netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	if addr = addr.Unmap(); !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, bits).Masked(), true
}

// counts says whether In returns the network of a route.
func counts(r *netlink.Route, to netip.Prefix, ranges []netip.Prefix) bool {
	if r.Type != unix.RTN_UNICAST {
		return false
	}
	ofInterface := r.Protocol == unix.RTPROT_KERNEL && r.Gw == nil && len(r.MultiPath) == 0
	return slices.ContainsFunc(ranges, func(of netip.Prefix) bool {
		return of.Overlaps(to) && (ofInterface || to.Bits() > of.Bits())
	})
}

// Follow calls changed after each change of a route in the ranges of the last question. When the
// context ends it returns nil and leaves nothing behind. It renews a lost subscription, and
// logs a failure as Follow of addresses does.
func (n *Networks) Follow(ctx context.Context, log *slog.Logger, changed func()) error {
	return followAgain(ctx, log, "routes", func() error { return n.follow(ctx, changed) })
}

func (n *Networks) follow(ctx context.Context, changed func()) error {
	s, err := subscribe(nil, n.concerned, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return fmt.Errorf("subscribe to routes: %w", err)
	}
	defer s.end()
	// There may have been a change before the subscription.
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.lost:
			return fmt.Errorf("receive routes: %w", err)
		case <-s.changed:
		}
		changed()
		n.mu.Lock()
		rest := max(shortestRest, restShare*n.took)
		n.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rest):
		}
	}
}

// concerned says whether a notice is about a route in the ranges. The kernel does not tell which
// routes go with an interface: where there are networks, a notice about an interface counts too.
func (n *Networks) concerned(m syscall.NetlinkMessage) bool {
	n.mu.Lock()
	ranges, found := n.ranges, n.found
	n.mu.Unlock()
	switch {
	case len(ranges) == 0:
		return false
	case m.Header.Type == unix.RTM_NEWLINK || m.Header.Type == unix.RTM_DELLINK:
		return found > 0
	}
	to, ok := destinationOf(m.Data)
	return ok && slices.ContainsFunc(ranges, to.Overlaps)
}

// destinationOf reads the destination of a message about a route; false for a default route.
func destinationOf(data []byte) (netip.Prefix, bool) {
	if len(data) < unix.SizeofRtMsg {
		return netip.Prefix{}, false
	}
	message := nl.DeserializeRtMsg(data)
	attributes, err := nl.ParseRouteAttr(data[message.Len():])
	if err != nil {
		return netip.Prefix{}, false
	}
	for _, a := range attributes {
		if a.Attr.Type == unix.RTA_DST {
			addr, ok := netip.AddrFromSlice(a.Value)
			return netip.PrefixFrom(addr.Unmap(), int(message.Dst_len)).Masked(), ok
		}
	}
	return netip.Prefix{}, false
}
