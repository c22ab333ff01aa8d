package livetrace

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// Flow describes connections, as their first packets come to the node or leave a process of
// it.
type Flow struct {
	// Source is where they come from. The zero Addr is any address, and port 0 any port.
	Source netip.AddrPort
	// Destination is the address and port that the client asks for.
	Destination netip.AddrPort
	// Protocol is the IP protocol's number, of TCP, UDP or SCTP, which have their ports at the same place.
	Protocol uint8
}

// errFlow says how a flow is written.
var errFlow = errors.New("want [SOURCE[:PORT] ->] DESTINATION:PORT[/PROTOCOL], with IPv6 addresses in brackets " +
	"before a port")

// ParseFlow reads, for example, "10.96.0.10:80", "10.244.1.7 -> 10.96.0.10:53/udp" or
// "[fd00::7]:4000 -> [fd00:96::a]:80/tcp". Without a protocol it is TCP.
func ParseFlow(s string) (Flow, error) {
	f, err := parseFlow(s)
	if err != nil {
		return Flow{}, fmt.Errorf("flow %q: %w", s, err)
	}
	return f, nil
}

func parseFlow(s string) (Flow, error) {
	f := Flow{Protocol: uint8(service.TCP)}
	source, destination, found := strings.Cut(s, "->")
	if !found {
		source, destination = "", s
	}
	destination, protocol, named := strings.Cut(strings.TrimSpace(destination), "/")
	if named {
		p, err := service.ParseProtocol(protocol)
		if err != nil {
			return f, fmt.Errorf("protocol %q: want tcp, udp or sctp", protocol)
		}
		f.Protocol = uint8(p)
	}
	var err error
	if f.Destination, err = netip.ParseAddrPort(destination); err != nil {
		return f, fmt.Errorf("destination %q: %w", destination, errFlow)
	}
	if f.Destination.Port() == 0 {
		return f, errors.New("destination: port 0: want 1 to 65535")
	}
	f.Destination = netip.AddrPortFrom(f.Destination.Addr().Unmap(), f.Destination.Port())
	if found {
		if f.Source, err = parseSource(strings.TrimSpace(source)); err != nil {
			return f, fmt.Errorf("source %q: %w", strings.TrimSpace(source), errFlow)
		}
	}
	if found && f.Source.Addr().Is6() != f.Destination.Addr().Is6() {
		return f, errors.New("source and destination are of different families")
	}
	if f.Source.Addr().Zone()+f.Destination.Addr().Zone() != "" {
		return f, errors.New("an address has a zone: rules do not know zones")
	}
	return f, nil
}

// parseSource reads an address, with a port or without.
func parseSource(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return netip.AddrPortFrom(a.Unmap(), 0), nil
	}
	a, err := netip.ParseAddrPort(s)
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), err
}

// Family is the flow's family.
func (f Flow) Family() nft.Family {
	return ip.Of(f.Destination.Addr())
}

// String is the flow in the form that ParseFlow reads.
func (f Flow) String() string {
	source := ""
	switch {
	case f.Source.Addr().IsValid() && f.Source.Port() != 0:
		source = f.Source.String() + " -> "
	case f.Source.Addr().IsValid():
		source = f.Source.Addr().String() + " -> "
	}
	return source + f.Destination.String() + "/" + nft.ProtocolText(f.Protocol)
}
