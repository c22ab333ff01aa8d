package gen

import (
	"fmt"
	"net/netip"
	"strings"

	"nftproxy/nft"
)

// ParsePacket reads what nft.Packet.String writes.
func ParsePacket(s string) (nft.Packet, error) {
	var p nft.Packet
	src, rest, ok := strings.Cut(s, " -> ")
	dst, protocol, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		return p, fmt.Errorf("packet %q: want [node | [at] INTERFACE] SOURCE:PORT -> DESTINATION:PORT/PROTOCOL", s)
	}
	if from, rest, found := strings.Cut(src, " "); found {
		src = rest
		if from == "at" {
			p.ToInput = true
			from, src, _ = strings.Cut(rest, " ")
		}
		if p.FromNode = from == "node"; !p.FromNode {
			p.Input = from
		}
	}
	var err error
	if p.Src, err = netip.ParseAddrPort(src); err != nil {
		return p, fmt.Errorf("packet %q: %w", s, err)
	}
	if p.Dst, err = netip.ParseAddrPort(dst); err != nil {
		return p, fmt.Errorf("packet %q: %w", s, err)
	}
	for n := range 256 {
		if nft.ProtocolText(uint8(n)) == protocol {
			p.Protocol = uint8(n)
			return p, nil
		}
	}
	return p, fmt.Errorf("packet %q: unknown protocol %q", s, protocol)
}
