// Package hostaddr provides the addresses on the node's interfaces, the broadcast addresses
// of their networks, the ranges that local routes make the node's own, and the networks of
// given ranges that the node is on or has routes to, at the start and after every change. It
// does not decide which addresses serve node ports, and what networks are for (model/service,
// conntrack and nft/ruleset do).
package hostaddr

import (
	"context"
	"encoding/binary"
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
	// retryPeriod is the time after which a lost subscription is made again.
	retryPeriod = time.Second
	// triesInARow is how often an interrupted dump is repeated at once: a dump is
	// short, and the change that interrupts it is over.
	triesInARow = 10
	// shortestWait and longestWait bound the wait between two such rows of tries.
	shortestWait, longestWait = 5 * time.Millisecond, time.Second
)

// Addresses are those of a network namespace, each list sorted and each address once.
type Addresses struct {
	// Own are the addresses on interfaces.
	Own []netip.Addr
	// Shared are those of Own that are on interfaces whose link pods of the node may be on (sharesLink), without
	// link-local and loopback ones.
	Shared []netip.Addr
	// Broadcast are the IPv4 addresses by which a packet goes to all hosts of a network
	// that an interface is on: the last address of the network, unless it has less than
	// four, and the one that was given to the interface with its address.
	Broadcast []netip.Addr
}

func (a Addresses) equal(o Addresses) bool {
	return slices.Equal(a.Own, o.Own) && slices.Equal(a.Shared, o.Shared) && slices.Equal(a.Broadcast, o.Broadcast)
}

// sort sorts the lists and removes duplicates.
func (a *Addresses) sort() {
	for _, list := range []*[]netip.Addr{&a.Own, &a.Shared, &a.Broadcast} {
		slices.SortFunc(*list, netip.Addr.Compare)
		*list = slices.Compact(*list)
	}
}

// Follow calls observe with all addresses of its caller's network namespace: first at
// once, then after each change. When the context ends it returns nil and
// leaves nothing behind.
//
// The kernel drops notices that are not read fast enough. So each notice leads to a
// new list, and Follow renews a lost subscription. It logs a failure as a warning, but
// not again while the failure is the same. A list that a change interrupts is no
// failure.
func Follow(ctx context.Context, log *slog.Logger, observe func(Addresses)) error {
	return followed[Addresses]{
		what: "addresses", list: List, equal: Addresses.equal,
		subscribe: func() (*subscription, error) {
			return subscribe(nil, nil, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
		},
	}.follow(ctx, log, observe)
}

// followed is something that changes and can be listed.
type followed[T any] struct {
	what      string // for errors and the log
	list      func(context.Context) (T, error)
	equal     func(a, b T) bool
	subscribe func() (*subscription, error)
}

func (f followed[T]) follow(ctx context.Context, log *slog.Logger, observe func(T)) error {
	var last *T
	return followAgain(ctx, log, f.what, func() error {
		return f.followOnce(ctx, func(list T) {
			if last == nil || !f.equal(*last, list) {
				last = &list
				observe(list)
			}
		})
	})
}

// followAgain calls follow, and again when it ends, until the context ends. It logs a failure, but not again while it
// is the same.
func followAgain(ctx context.Context, log *slog.Logger, what string, follow func() error) error {
	failure := ""
	for {
		if err := follow(); err != nil && ctx.Err() == nil && err.Error() != failure {
			failure = err.Error()
			log.Warn("following the node's "+what, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryPeriod):
		}
	}
}

// followOnce follows until the subscription or the context ends.
func (f followed[T]) followOnce(ctx context.Context, observe func(T)) error {
	s, err := f.subscribe()
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", f.what, err)
	}
	defer s.end()
	for {
		list, err := f.list(ctx)
		if err != nil {
			return err
		}
		observe(list)
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case err := <-s.lost:
			return fmt.Errorf("receive %s: %w", f.what, err)
		}
	}
}

// List returns the addresses of its caller's network namespace. The kernel interrupts a dump during which an address
// changes, and the dump is then incomplete. List repeats it, at first at once and later after ever longer waits, until
// the context ends.
func List(ctx context.Context) (Addresses, error) {
	addrs, err := listWith(ctx, "addresses", dump)
	addrs.sort()
	return addrs, err
}

// listWith is List, before it sorts, with what is listed and the dump as arguments.
func listWith[T any](ctx context.Context, what string, dump func() (T, error)) (T, error) {
	wait := shortestWait
	for try := 1; ; try++ {
		list, err := dump()
		if err == nil {
			return list, nil
		}
		if err = fmt.Errorf("list %s: %w", what, err); !errors.Is(err, netlink.ErrDumpInterrupted) &&
			!errors.Is(err, unix.EINTR) {
			return *new(T), err
		}
		if try%triesInARow != 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return *new(T), err
		case <-time.After(wait):
			wait = min(2*wait, longestWait)
		}
	}
}

// ServiceDevice is the device that has the addresses of Services in kube-proxy's IPVS mode, and after it until somebody
// removes it. These are no addresses of the node: node ports are not served on them, and Services keep them. kube-proxy
// makes it of type dummy, and removes no other (pkg/proxy/ipvs/netlink_linux.go): one of another type is somebody
// else's.
const ServiceDevice = "kube-ipvs0"

// routerDevice is that of kube-router's service proxy, of the same type (pkg/controllers/proxy/linux_networking.go).
const routerDevice = "kube-dummy-if"

// FindServiceDevice returns kube-proxy's device of its caller's network namespace, or nil if it is not there.
func FindServiceDevice() (netlink.Link, error) { return findDummy(ServiceDevice) }

func findDummy(name string) (netlink.Link, error) {
	device, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) || err == nil && device.Type() != (&netlink.Dummy{}).Type() {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up interface %s: %w", name, err)
	}
	return device, nil
}

// serviceDevices are the numbers of the devices whose addresses are those of Services.
func serviceDevices() (numbers []int, err error) {
	for _, name := range []string{ServiceDevice, routerDevice} {
		device, err := findDummy(name)
		if err != nil {
			return nil, err
		}
		if device != nil {
			numbers = append(numbers, device.Attrs().Index)
		}
	}
	return numbers, nil
}

// dump asks the kernel once for each family: a dump of both takes longer, and a
// change of either would interrupt all of it.
func dump() (Addresses, error) {
	var addrs Addresses
	services, err := serviceDevices()
	if err != nil {
		return addrs, err
	}
	shared := map[int]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := netlink.AddrList(nil, family)
		if err != nil {
			return addrs, err
		}
		for _, a := range found {
			if slices.Contains(services, a.LinkIndex) {
				continue
			}
			if family == netlink.FAMILY_V4 {
				addrs.Broadcast = append(addrs.Broadcast, broadcasts(&a)...)
			}
			addr, ok := netip.AddrFromSlice(a.IP)
			if !ok {
				continue
			}
			addr = addr.Unmap()
			addrs.Own = append(addrs.Own, addr)
			if addr.IsLinkLocalUnicast() || addr.IsLoopback() {
				continue
			}
			if _, known := shared[a.LinkIndex]; !known {
				if shared[a.LinkIndex], err = sharesLink(a.LinkIndex); err != nil {
					return addrs, err
				}
			}
			if shared[a.LinkIndex] {
				addrs.Shared = append(addrs.Shared, addr)
			}
		}
	}
	return addrs, nil
}

// sharesLink says whether pods of the node may be on the link of an interface: of a bridge, whose ports pods may have,
// and of a macvlan or ipvlan, beside which pods may have others of the same device. An interface that has gone shares
// nothing.
func sharesLink(number int) (bool, error) {
	link, err := netlink.LinkByIndex(number)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up interface %d: %w", number, err)
	}
	switch link.(type) {
	case *netlink.Bridge, *netlink.Macvlan, *netlink.IPVlan:
		return true, nil
	}
	return false, nil
}

// broadcasts returns the broadcast addresses that the kernel has a route to by an
// interface's address (fib_add_ifaddr in net/ipv4/fib_frontend.c). 255.255.255.255 is one
// on each interface.
func broadcasts(a *netlink.Addr) []netip.Addr {
	var list []netip.Addr
	if given, ok := netip.AddrFromSlice(a.Broadcast); ok && !given.IsUnspecified() {
		list = append(list, given.Unmap())
	}
	network := a.IPNet
	if a.Peer != nil {
		network = a.Peer
	}
	length, _ := network.Mask.Size()
	const shortest = 30 // a longer prefix has no address for all hosts (RFC 3021)
	if ip := network.IP.To4(); ip != nil && length <= shortest {
		hosts := uint32(1)<<(32-length) - 1
		last := [4]byte{}
		binary.BigEndian.PutUint32(last[:], binary.BigEndian.Uint32(ip)|hosts)
		list = append(list, netip.AddrFrom4(last))
	}
	return list
}
