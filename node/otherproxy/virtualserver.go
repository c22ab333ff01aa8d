package otherproxy

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/cloudflare/ipvs"
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

// ipvsClient is a socket to the kernel's IPVS.
type ipvsClient struct{ ipvs.Client }

// dialIPVS returns nil if the kernel has no IPVS now. It looks for IPVS' file first (ip_vs_control_net_init): asking
// for the netlink family by its name would load the module.
func dialIPVS() (*ipvsClient, error) {
	if _, err := os.Stat("/proc/thread-self/net/ip_vs"); err != nil {
		return nil, nil
	}
	c, err := ipvs.New()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask for IPVS: %w", err)
	}
	return &ipvsClient{c}, nil
}

func (c *ipvsClient) close() {
	if closer, ok := c.Client.(io.Closer); ok { // its interface lacks Close
		_ = closer.Close()
	}
}

// servers lists all virtual servers.
func (c *ipvsClient) servers() ([]virtualServer, error) {
	services, err := c.Services()
	if err != nil && !errors.Is(err, os.ErrNotExist) { // none
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	list := make([]virtualServer, 0, len(services))
	for _, of := range services {
		s := parseServer(of.Service)
		if s.mark == 0 {
			destinations, err := c.Destinations(s.service())
			none := errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) // it is gone meanwhile
			if err != nil && !none {
				return nil, fmt.Errorf("list the servers of virtual server %s: %w", s, err)
			}
			for _, d := range destinations {
				s.addServer(d)
			}
		}
		list = append(list, s)
	}
	return list, nil
}

func parseServer(of ipvs.Service) virtualServer {
	return virtualServer{
		Frontend: Frontend{Protocol: uint8(of.Protocol), Addr: netip.AddrPortFrom(of.Address, of.Port)},
		mark:     of.FWMark,
		whole:    of.Netmask.IsValid() && of.Netmask.Bits() == of.Address.BitLen(),
		natted:   true,
	}
}

// addServer adds what the kernel says about one of its servers.
func (s *virtualServer) addServer(d ipvs.DestinationExtended) {
	s.natted = s.natted && d.FwdMethod == ipvs.Masquerade
	s.connections += uint64(d.ActiveConnections) + uint64(d.InactiveConnections)
}

// service names a virtual server without a mark to the kernel.
func (s *virtualServer) service() ipvs.Service {
	return ipvs.Service{
		Family:   ipvs.AddressFamily(ip.Of(s.Addr.Addr())), // AF_INET and AF_INET6 are the same numbers
		Protocol: ipvs.Protocol(s.Protocol),
		Address:  s.Addr.Addr(),
		Port:     s.Addr.Port(),
	}
}

// remove removes a virtual server. One that is not there is no error.
func (c *ipvsClient) remove(s virtualServer) error {
	err := c.RemoveService(s.service())
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove virtual server %s: %w", s, err)
	}
	return nil
}
