// Package ip promises one name for each of the two address families, and a value for each of them.
//
// It does not represent addresses: net/netip does.
package ip

import "net/netip"

// Family is an address family, by the kernel's number (NFPROTO_IPV4, NFPROTO_IPV6).
type Family uint8

// The families.
const (
	V4 Family = 2
	V6 Family = 10
)

// Families lists both, IPv4 first. The order is that of the values of a PerFamily.
func Families() [2]Family { return [2]Family{V4, V6} }

// Of returns the family of an address. An IPv4 address that is mapped to IPv6 counts as IPv6.
func Of(a netip.Addr) Family {
	if a.Is6() {
		return V6
	}
	return V4
}

// Has reports whether the address is of the family.
func (f Family) Has(a netip.Addr) bool { return Of(a) == f }

// String is nft's word for the family: "ip" or "ip6".
func (f Family) String() string {
	if f == V6 {
		return "ip6"
	}
	return "ip"
}

// Name is the Kubernetes API's name of the family, "IPv4" or "IPv6". Metrics and health use it too.
func (f Family) Name() string {
	if f == V6 {
		return "IPv6"
	}
	return "IPv4"
}

// AddrLen is the length of an address of the family in bytes.
func (f Family) AddrLen() int {
	if f == V6 {
		return 16
	}
	return 4
}

// Unspecified is 0.0.0.0 or ::.
func (f Family) Unspecified() netip.Addr {
	if f == V6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Loopback is 127.0.0.1 or ::1, where programs listen for others on the same host.
func (f Family) Loopback() netip.Addr {
	if f == V6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Example is an address of the ranges for examples (RFC 5737, RFC 3849): no host has it, and it is reached like most.
func (f Family) Example() netip.Addr {
	if f == V6 {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
	}
	return netip.AddrFrom4([4]byte{203, 0, 113, 1})
}

// PerFamily has a value for each family, in the order of Families.
type PerFamily[T any] [2]T

// Of returns the value of a family, which may be changed.
func (p *PerFamily[T]) Of(f Family) *T {
	if f == V6 {
		return &p[1]
	}
	return &p[0]
}
