package hostaddr

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
)

// FollowLocalRoutes is Follow for the ranges that local routes make the node's own.
func FollowLocalRoutes(ctx context.Context, log *slog.Logger, observe func([]netip.Prefix)) error {
	return followed[[]netip.Prefix]{
		what: "local routes", list: LocalRoutes, equal: slices.Equal[[]netip.Prefix],
		subscribe: func() (*subscription, error) {
			return subscribe(localRoutesOnly(), nil, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		},
	}.follow(ctx, log, observe)
}

// LocalRoutes returns the ranges of the routes of type local in table local of its caller's
// network namespace, sorted, each once: the addresses on interfaces, and what "ip route add
// local" adds to them, as agents of cloud load balancers do. It leaves out loopback and
// link-local ones, and those of devices for Services' addresses. It repeats an interrupted dump as List does.
func LocalRoutes(ctx context.Context) ([]netip.Prefix, error) {
	list, err := listWith(ctx, "local routes", dumpLocalRoutes)
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list), err
}

// The offsets of fields in a struct rtmsg (uapi/linux/rtnetlink.h), and its length.
const (
	rtmDstLen = 1
	rtmTable  = 4
	rtmType   = 7
	rtmLen    = 12
)

// localRoutesOnly returns a filter that accepts notices about routes of type local in table local. A node may get
// thousands of other routes a second from a routing daemon.
func localRoutesOnly() []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: unix.SizeofNlMsghdr + rtmTable},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.RT_TABLE_LOCAL, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: unix.SizeofNlMsghdr + rtmType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.RTN_LOCAL, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
}

// dumpLocalRoutes asks the kernel once for each family. Kernels from 4.20 on return only the
// wanted routes, and not the million of a border router.
func dumpLocalRoutes() (routes []netip.Prefix, err error) {
	services, err := serviceDevices()
	if err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetOption(netlink.GetStrictCheck, true) // Older kernels do not know it.
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		question := make([]byte, rtmLen)
		question[0], question[rtmTable], question[rtmType] = family, unix.RT_TABLE_LOCAL, unix.RTN_LOCAL
		answers, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request | netlink.Dump}, Data: question,
		})
		if err != nil {
			return nil, err
		}
		for _, m := range answers {
			if m.Header.Flags&netlink.DumpInterrupted != 0 {
				return nil, unix.EINTR
			}
			if r, device, ok, err := localRoute(m); err != nil {
				return nil, err
			} else if ok && !slices.Contains(services, device) && !r.Addr().IsLoopback() && !r.Addr().IsLinkLocalUnicast() {
				routes = append(routes, r)
			}
		}
	}
	return routes, nil
}

// localRoute returns the range of a route, and the number of its device; ok is false if it is of another type or table.
func localRoute(m netlink.Message) (r netip.Prefix, device int, ok bool, err error) {
	b := m.Data
	if m.Header.Type != unix.RTM_NEWROUTE || len(b) < rtmLen || b[rtmTable] != unix.RT_TABLE_LOCAL ||
		b[rtmType] != unix.RTN_LOCAL {
		return r, 0, false, nil
	}
	dst := ip.Family(b[0]).Unspecified()
	attrs, err := netlink.NewAttributeDecoder(b[rtmLen:])
	if err != nil {
		return r, 0, false, fmt.Errorf("decode route: %w", err)
	}
	for attrs.Next() {
		switch attrs.Type() {
		case unix.RTA_OIF:
			device = int(attrs.Uint32())
		case unix.RTA_DST:
			if dst, ok = netip.AddrFromSlice(attrs.Bytes()); !ok {
				return r, 0, false, fmt.Errorf("decode route: destination of %d bytes", len(attrs.Bytes()))
			}
		}
	}
	if r, err = dst.Prefix(int(b[rtmDstLen])); err != nil {
		return r, 0, false, fmt.Errorf("decode route: %w", err)
	}
	return r, device, true, attrs.Err()
}
