package hostaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Route says what the kernel does with a packet of the node to an address.
type Route struct {
	// Local says that the address is one of the node's own, as "fib daddr type local" has it.
	Local bool
	// Device is the interface by which the packet leaves; empty if there is no way to the address.
	Device string
	// Via is the next hop; not valid where the address is on the link.
	Via netip.Addr
	// Default says that the way is the default route.
	Default bool
	// Refusal says why there is no way, in words, such as "no route"; empty if there is one.
	Refusal string
	// Source is the node's address that the kernel chooses for the packet; not valid if there is none.
	Source netip.Addr
}

// Has says whether an interface has the address, as "fib daddr . iif type local" has it. An interface that
// is not there has none.
func Has(device string, a netip.Addr) (bool, error) {
	link, err := netlink.LinkByName(device)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up interface %s: %w", device, err)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list the addresses of interface %s: %w", device, err)
	}
	return slices.ContainsFunc(addrs, func(has netlink.Addr) bool { return has.IP.Equal(a.AsSlice()) }), nil
}

// Lookup asks the kernel for the way to an address. An address without a way is no error.
func Lookup(a netip.Addr) (Route, error) {
	var r Route
	found, err := netlink.RouteGetWithOptions(a.AsSlice(), nil)
	for errno, refusal := range map[error]string{
		unix.ENETUNREACH: "no route", unix.EHOSTUNREACH: "a route of type unreachable",
		unix.EACCES: "a route of type prohibit", unix.EINVAL: "a route of type blackhole",
	} {
		if errors.Is(err, errno) {
			r.Refusal = refusal
			return r, nil
		}
	}
	if err != nil {
		return r, fmt.Errorf("look up the route to %s: %w", a, err)
	}
	if len(found) == 0 {
		return r, nil
	}
	route := found[0]
	r.Local = route.Type == unix.RTN_LOCAL
	if source, ok := netip.AddrFromSlice(route.Src); ok {
		r.Source = source.Unmap()
	}
	if via, ok := netip.AddrFromSlice(route.Gw); ok {
		r.Via = via.Unmap()
	}
	if !r.Local && route.Type != unix.RTN_UNICAST {
		r.Refusal = fmt.Sprintf("a route of the type %d, which leads to no host", route.Type) // such as a broadcast address
		return r, nil
	}
	link, err := netlink.LinkByIndex(route.LinkIndex)
	if err != nil {
		return r, fmt.Errorf("look up the interface of the route to %s: %w", a, err)
	}
	r.Device = link.Attrs().Name
	r.Default = byDefault(a)
	return r, nil
}

// byDefault says whether the default route leads to the address.
func byDefault(a netip.Addr) bool {
	found, err := netlink.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(found) == 0 {
		return false // kernels before 4.13 do not tell; then no way counts as the default route
	}
	dst := found[0].Dst
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0
}

// OnLink returns the interfaces on whose link the addresses are, each once. Those of the node itself are on none.
func OnLink(addrs []netip.Addr) ([]string, error) {
	var devices []string
	for _, a := range addrs {
		r, err := Lookup(a)
		if err != nil {
			return nil, err
		}
		if !r.Local && !r.Via.IsValid() && r.Device != "" && !slices.Contains(devices, r.Device) {
			devices = append(devices, r.Device)
		}
	}
	return devices, nil
}
