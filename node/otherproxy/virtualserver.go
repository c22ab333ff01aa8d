package otherproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
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
func findFamily(families []netlink.Message) (netlink.HeaderType, error) {
	for _, m := range families {
		var name string
		var number uint16
		err := decode(payload(m), func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.CTRL_ATTR_FAMILY_NAME:
				name = ad.String()
			case unix.CTRL_ATTR_FAMILY_ID:
				number = ad.Uint16()
			}
		})
		if err != nil {
			return 0, err
		}
		if name == ipvsFamily {
			return netlink.HeaderType(number), nil
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
func payload(m netlink.Message) []byte {
	return m.Data[min(genericHeaderLength, len(m.Data)):]
}

// decode visits attributes. An error of one of them, such as a wrong length, is the result.
func decode(attributes []byte, visit func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return err
	}
	for ad.Next() {
		visit(ad)
	}
	return ad.Err()
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
	var family uint16
	var addr, netmask []byte
	s.natted = true
	err = decode(payload(m), func(outer *netlink.AttributeDecoder) {
		if outer.Type() != ipvsCmdService {
			return
		}
		outer.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				switch ad.Type() {
				case ipvsSvcFamily:
					family = ad.Uint16()
				case ipvsSvcProtocol:
					s.Protocol = uint8(ad.Uint16())
				case ipvsSvcAddr:
					addr = ad.Bytes()
				case ipvsSvcPort:
					if port := ad.Bytes(); len(port) == 2 {
						s.Addr = netip.AddrPortFrom(s.Addr.Addr(), binary.BigEndian.Uint16(port))
					}
				case ipvsSvcMark:
					s.mark = ad.Uint32()
				case ipvsSvcNetmask:
					netmask = ad.Bytes()
				}
			}
			return nil
		})
	})
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
	s.Addr = netip.AddrPortFrom(a, s.Addr.Port())
	// Of IPv4 it is a mask, of IPv6 the length of a prefix.
	mask := binary.NativeEndian.Uint32(netmask)
	s.whole = mask == 1<<32-1 || family == unix.AF_INET6 && mask == 128
	return s, nil
}

// addServer adds what a message says about one of its servers.
func (s *virtualServer) addServer(m netlink.Message) error {
	return decode(payload(m), func(outer *netlink.AttributeDecoder) {
		if outer.Type() != ipvsCmdDest {
			return
		}
		outer.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				switch ad.Type() {
				case ipvsDestForward:
					s.natted = s.natted && ad.Uint32()&ipvsForwardMask == ipvsForwardNAT
				case ipvsDestActive, ipvsDestInactive:
					s.connections += uint64(ad.Uint32())
				}
			}
			return nil
		})
	})
}

// attributes name a virtual server without a mark to the kernel.
func (s *virtualServer) attributes() []byte {
	ae := netlink.NewAttributeEncoder()
	ae.Nested(ipvsCmdService, func(in *netlink.AttributeEncoder) error {
		in.Uint16(ipvsSvcFamily, uint16(ip.Of(s.Addr.Addr()))) // AF_INET and AF_INET6 are the same numbers
		in.Uint16(ipvsSvcProtocol, uint16(s.Protocol))
		in.Bytes(ipvsSvcAddr, s.Addr.Addr().AsSlice())
		in.Bytes(ipvsSvcPort, binary.BigEndian.AppendUint16(nil, s.Addr.Port()))
		return nil
	})
	b, err := ae.Encode()
	if err != nil {
		panic(fmt.Sprintf("encode virtual server %s: %v", s, err)) // all attributes are short
	}
	return b
}

// remove removes a virtual server. One that is not there is no error.
func (v *ipvs) remove(s virtualServer) error {
	_, err := v.conn.Execute(message(v.family, ipvsDelService, netlink.Request|netlink.Acknowledge, s.attributes()))
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove virtual server %s: %w", s, err)
	}
	return nil
}
