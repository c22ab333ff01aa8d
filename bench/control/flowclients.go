package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

// The numbers of the clients' addresses, and of ports for each address.
const (
	clientCount   = 4
	portsOfClient = 50_000
	firstPort     = 10_000
)

func clientIPs() []netip.Addr {
	var list []netip.Addr
	for n := range clientCount {
		list = append(list, controlplane.Address("10.244.0.10", n))
	}
	return list
}

// clients sends datagrams of many flows through one socket, and reads no answer.
type clients struct {
	fd     int
	flows  int
	packet [headers + 1]byte
}

// headers are those of IPv4 and UDP, without options.
const headers = 20 + 8

func newClients(ns *testnet.Namespace, flows int, to netip.AddrPort) (*clients, error) {
	c := &clients{fd: -1, flows: flows}
	err := ns.Do(func() (err error) {
		c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) // with the headers
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, fmt.Errorf("open the clients' socket: %w", err)
	}
	p := c.packet[:]
	p[0], p[8], p[9] = 4<<4|5, 64, unix.IPPROTO_UDP // the kernel fills in length and checksum
	copy(p[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[22:], to.Port())
	binary.BigEndian.PutUint16(p[24:], uint16(len(p)-20)) // and no checksum of UDP
	return c, nil
}

func (c *clients) close() error { return os.NewSyscallError("close", unix.Close(c.fd)) }

// send sends a datagram of a flow.
func (c *clients) send(flow int) error {
	p := c.packet[:]
	src := controlplane.Address("10.244.0.10", flow/portsOfClient).As4()
	copy(p[12:], src[:])
	binary.BigEndian.PutUint16(p[20:], uint16(firstPort+flow%portsOfClient))
	to := unix.SockaddrInet4{Addr: [4]byte(p[16:20])}
	for {
		err := unix.Sendto(c.fd, p, 0, &to)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) {
			continue
		}
		return os.NewSyscallError("sendto", err)
	}
}

// all sends one datagram of each flow, as fast as possible.
func (c *clients) all(ctx context.Context) error {
	for flow := range c.flows {
		if err := c.send(flow); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// talk sends datagrams of the flows in turn, at a constant rate, until the context ends.
func (c *clients) talk(ctx context.Context, perSecond int) error {
	const turn = 10 * time.Millisecond
	ticks := time.NewTicker(turn)
	defer ticks.Stop()
	for flow := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		for range perSecond * int(turn) / int(time.Second) {
			if err := c.send(flow); err != nil {
				return err
			}
			flow = (flow + 1) % c.flows
		}
	}
}
