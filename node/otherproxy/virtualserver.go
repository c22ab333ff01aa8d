package otherproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/nfnetlink"
)

// virtualServer is one of the kernel's IPVS.
type virtualServer struct {
	Frontend
	// mark is that of the packets that it takes, instead of a frontend; 0 for none.
	mark uint32
	// whole says that it takes the address alone, and not a network. natted says that all its servers get packets with
	// a translated address.
	whole, natted bool
	// connections is how many go to its servers; those of UDP and closed ones stay for some time.
	connections uint64
}

// Commands and attributes of IPVS (uapi/linux/ip_vs.h), which x/sys/unix lacks.
const (
	ipvsFamily  = "IPVS"
	ipvsVersion = 1

	ipvsDelService = 3
	ipvsGetService = 4
	ipvsGetDest    = 8

	ipvsCmdService = 1
	ipvsCmdDest    = 2

	ipvsSvcFamily   = 1
	ipvsSvcProtocol = 2
	ipvsSvcAddr     = 3
	ipvsSvcPort     = 4
	ipvsSvcMark     = 5
	ipvsSvcNetmask  = 9

	ipvsDestForward     = 3
	ipvsDestActive      = 7
	ipvsDestInactive    = 8
	ipvsForwardMask     = 7
	ipvsForwardNAT      = 0
	genericHeaderLength = 4 // struct genlmsghdr
)

// ipvs is a socket to the kernel's IPVS.
type ipvs struct {
	conn   *netlink.Conn
	family netlink.HeaderType
}

// dialIPVS returns nil if the kernel has no IPVS now: asking for it by its name would load its module.
func dialIPVS() (*ipvs, error) {
	conn, err := netlink.Dial(unix.NETLINK_GENERIC, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	v := &ipvs{conn: conn, family: unix.GENL_ID_CTRL}
	families, err := v.dump(unix.CTRL_CMD_GETFAMILY, nil)
	if err == nil {
		v.family, err = findFamily(families)
	}
	if err == nil && v.family != 0 {
		return v, nil
	}
	_ = conn.Close()
	return nil, err
}

func (v *ipvs) close() { _ = v.conn.Close() }

// findFamily returns the number of the generic netlink family IPVS, or 0.
func findFamily(families []netlink.Message) (number netlink.HeaderType, err error) {
	for _, m := range families {
		attributes := payload(m)
		if err := attributes.Check(); err != nil {
			return 0, err
		}
		if attributes.Text(unix.CTRL_ATTR_FAMILY_NAME) == ipvsFamily {
			number = netlink.HeaderType(hostNumber(attributes.Get(unix.CTRL_ATTR_FAMILY_ID), 2, &err))
			return number, err
		}
	}
	return 0, nil
}

// dump sends a request and returns the messages of the answer.
func (v *ipvs) dump(command uint8, attributes []byte) ([]netlink.Message, error) {
	return v.conn.Execute(message(v.family, command, netlink.Request|netlink.Dump, attributes))
}

func message(family netlink.HeaderType, command uint8, flags netlink.HeaderFlags, attributes []byte) netlink.Message {
	data := append([]byte{command, ipvsVersion, 0, 0}, attributes...)
	return netlink.Message{Header: netlink.Header{Type: family, Flags: flags}, Data: data}
}

// payload is the attributes of a message.
func payload(m netlink.Message) nfnetlink.Attributes {
	return m.Data[min(genericHeaderLength, len(m.Data)):]
}

// nested yields the attributes in a message's attribute of a type.
func nested(m netlink.Message, kind uint16, err *error) func(yield func(kind uint16, value nfnetlink.Attributes) bool) {
	*err = payload(m).Check()
	return payload(m).Get(kind).Strict(err)
}

// hostNumber is a value of so many bytes, 2 or 4, as a number in the byte order of the machine, as IPVS has them.
func hostNumber(v nfnetlink.Attributes, size int, err *error) uint32 {
	switch {
	case len(v) != size:
		*err = errMalformed
		return 0
	case size == 2:
		return uint32(binary.NativeEndian.Uint16(v))
	}
	return binary.NativeEndian.Uint32(v)
}

// servers lists all virtual servers.
func (v *ipvs) servers() ([]virtualServer, error) {
	answers, err := v.dump(ipvsGetService, nil)
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	list := make([]virtualServer, 0, len(answers))
	for _, m := range answers {
		s, err := parseServer(m)
		if err != nil {
			return nil, fmt.Errorf("list virtual servers: %w", err)
		}
		list = append(list, s)
	}
	for i := range list {
		if list[i].mark != 0 {
			continue
		}
		answers, err := v.dump(ipvsGetDest, list[i].attributes())
		if errors.Is(err, unix.ESRCH) {
			continue // it is gone meanwhile
		}
		for _, m := range answers {
			err = errors.Join(err, list[i].addServer(m))
		}
		if err != nil {
			return nil, fmt.Errorf("list the servers of virtual server %s: %w", list[i], err)
		}
	}
	return list, nil
}

// parseServer reads a message about a virtual server.
func parseServer(m netlink.Message) (s virtualServer, err error) {
	var family uint32
	var port uint16
	var addr, netmask []byte
	s.natted = true
	for kind, v := range nested(m, ipvsCmdService, &err) {
		switch kind {
		case ipvsSvcFamily:
			family = hostNumber(v, 2, &err)
		case ipvsSvcProtocol:
			s.Protocol = uint8(hostNumber(v, 2, &err))
		case ipvsSvcAddr:
			addr = v
		case ipvsSvcPort:
			port = v.ReadUint16(&err)
		case ipvsSvcMark:
			s.mark = hostNumber(v, 4, &err)
		case ipvsSvcNetmask:
			netmask = v
		}
	}
	if err != nil || s.mark != 0 {
		return s, err
	}
	length := 16 // the kernel sends a union nf_inet_addr
	if family == unix.AF_INET {
		length = 4
	}
	if len(addr) < length || len(netmask) < 4 {
		return s, errMalformed
	}
	a, _ := netip.AddrFromSlice(addr[:length])
	s.Addr = netip.AddrPortFrom(a, port)
	// Of IPv4 it is a mask, of IPv6 the length of a prefix.
	mask := binary.NativeEndian.Uint32(netmask)
	s.whole = mask == 1<<32-1 || family == unix.AF_INET6 && mask == 128
	return s, nil
}

// addServer adds what a message says about one of its servers.
func (s *virtualServer) addServer(m netlink.Message) (err error) {
	for kind, v := range nested(m, ipvsCmdDest, &err) {
		switch kind {
		case ipvsDestForward:
			s.natted = s.natted && hostNumber(v, 4, &err)&ipvsForwardMask == ipvsForwardNAT
		case ipvsDestActive, ipvsDestInactive:
			s.connections += uint64(hostNumber(v, 4, &err))
		}
	}
	return err
}

// attributes name a virtual server without a mark to the kernel.
func (s *virtualServer) attributes() []byte {
	host := func(n uint16) []byte { return binary.NativeEndian.AppendUint16(nil, n) }
	var e nfnetlink.Encoder
	at := e.BeginNest(ipvsCmdService)
	e.Bytes(ipvsSvcFamily, host(uint16(ip.Of(s.Addr.Addr())))) // AF_INET and AF_INET6 are the same numbers
	e.Bytes(ipvsSvcProtocol, host(uint16(s.Protocol)))
	e.Bytes(ipvsSvcAddr, s.Addr.Addr().AsSlice()).Uint16(ipvsSvcPort, s.Addr.Port())
	e.EndNest(at)
	return e.B
}

// remove removes a virtual server. One that is not there is no error.
func (v *ipvs) remove(s virtualServer) error {
	_, err := v.conn.Execute(message(v.family, ipvsDelService, netlink.Request|netlink.Acknowledge, s.attributes()))
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove virtual server %s: %w", s, err)
	}
	return nil
}
