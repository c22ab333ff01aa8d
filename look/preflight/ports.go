package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"nftproxy/node/hostaddr"
	"nftproxy/node/otherproxy"
	"nftproxy/node/tablekeeper"
)

// ports tries the addresses of nftproxy's servers.
func (o Options) ports(ctx context.Context) []Finding {
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(o.Addresses)) {
		found = append(found, o.port(ctx, "ports: "+name, o.Addresses[name]))
	}
	return found
}

// port tries one address. The nftproxy that keeps the table may have it already.
func (o Options) port(ctx context.Context, probe, address string) Finding {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err == nil {
		err = l.Close()
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return o.takenPort(ctx, probe, address)
	case err != nil:
		return failed(probe, err)
	}
	return green(probe, address+" is free")
}

// takenPort is the finding of an address that a process has.
func (o Options) takenPort(ctx context.Context, probe, address string) Finding {
	listeners, err := o.listeners(address)
	if err != nil {
		return failed(probe, err)
	}
	ours := len(listeners) > 0
	for _, at := range listeners {
		ours = ours && otherproxy.AnswersAsOurs(ctx, at.String())
	}
	if !ours {
		return yellow(probe, address+" is in use",
			"if kube-proxy has it: nftproxy takes it once kube-proxy has ended; else choose another address")
	}
	keepers, err := tablekeeper.List()
	if err != nil {
		return failed(probe, err)
	}
	switch {
	case !keepers.Used(o.Table, 0):
		return yellow(probe, fmt.Sprintf("%s is in use by an nftproxy that does not keep the table %s", address, o.Table),
			"for a second nftproxy on the node choose another address")
	case len(keepers) > 1:
		return green(probe, fmt.Sprintf("%s is served by one of the %d nftproxies that run", address, len(keepers)))
	}
	return green(probe, address+" is served by the nftproxy that runs")
}

// listeners returns where processes listen that keep others from an address, as ADDRESS:PORT to connect to.
func (o Options) listeners(address string) ([]netip.AddrPort, error) {
	want, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	host, _ := netip.AddrFromSlice(want.IP)
	host = host.Unmap()
	all := !host.IsValid() || host.IsUnspecified()
	var found []netip.AddrPort
	err = hostaddr.Sockets(o.Proc, []string{"tcp", "tcp6"}, func(at netip.AddrPort, listens bool) {
		if !listens || int(at.Port()) != want.Port || !all && !at.Addr().IsUnspecified() && at.Addr() != host {
			return
		}
		if at.Addr().IsUnspecified() { // one of both families takes connections to 127.0.0.1, too
			loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
			if host.Is6() && !all {
				loopback = netip.IPv6Loopback()
			}
			at = netip.AddrPortFrom(loopback, at.Port())
		}
		found = append(found, at)
	})
	return found, err
}
