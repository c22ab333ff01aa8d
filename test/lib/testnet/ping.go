package testnet

import (
	"net/netip"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// icmpNetwork is the protocol of echo requests as package net names it.
func icmpNetwork(a netip.Addr) string {
	if a.Is4() {
		return "ip4:icmp"
	}
	return "ip6:ipv6-icmp"
}

// echo sends an echo request and waits for its reply.
func (q *question) echo() error {
	source := ""
	if q.from.IsValid() {
		source = q.from.Addr().String()
	}
	conn, release, err := q.connect(icmpNetwork(q.to.Addr()), source, q.to.Addr().String())
	if err != nil {
		return err
	}
	defer release()
	id := int(q.ns.freshPort())
	request, err := echoRequest(q.to.Addr(), id)
	if err != nil {
		return err
	}
	// Type, code and checksum, then the id.
	own := func(packet []byte) bool {
		return len(packet) >= 6 && packet[0] == request[0] && [2]byte(packet[4:6]) == [2]byte(request[4:6])
	}
	socket, err := raw(conn, q.to.Addr(), own)
	if err != nil {
		return err
	}
	if err := socket.send(request); err != nil {
		return err
	}
	return awaitReply(socket, q.to.Addr(), id)
}

func echoRequest(to netip.Addr, id int) ([]byte, error) {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: id, Seq: 1, Data: []byte("who?")}}
	if to.Is6() {
		m.Type = ipv6.ICMPTypeEchoRequest // the kernel fills in its checksum
	}
	return m.Marshal(nil)
}

func awaitReply(socket *rawSocket, from netip.Addr, id int) error {
	protocol, reply := 1, icmp.Type(ipv4.ICMPTypeEchoReply)
	if from.Is6() {
		protocol, reply = 58, ipv6.ICMPTypeEchoReply
	}
	buf := make([]byte, 2048)
	for {
		n, err := socket.read(buf)
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(protocol, buf[:n])
		if err != nil || m.Type != reply {
			continue // not for us
		}
		if echo, ok := m.Body.(*icmp.Echo); ok && echo.ID == id {
			return nil
		}
	}
}
