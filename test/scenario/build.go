package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"nftproxy/test/lib/testnet"
)

// The interfaces of the node, and that of every other namespace.
const (
	toOutside = "eth0"
	toRemote  = "eth1"
	toBeyond  = "eth2"
	uplink    = "eth0"
)

// gateways are how everybody calls the node on their link to it; neighbours is
// how the node calls them.
func gateways() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("169.254.0.1"), netip.MustParseAddr("fd00:fe::1")}
}

func neighbours() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("169.254.0.2"), netip.MustParseAddr("fd00:fe::2")}
}

func everything(a netip.Addr) netip.Prefix { p, _ := a.Prefix(0); return p }

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func sameFamily(list []netip.Addr, like netip.Addr) netip.Addr {
	return list[slices.IndexFunc(list, func(a netip.Addr) bool { return a.Is4() == like.Is4() })]
}

// build makes the places that are always there.
func (s *Stage) build() error {
	var err error
	if s.Node, err = s.space(onNode); err != nil {
		return err
	}
	if err := s.Node.Forward(); err != nil {
		return err
	}
	for where, link := range map[place]string{outside: toOutside, remote: toRemote, beyond: toBeyond} {
		if err := s.join(where, link); err != nil {
			return err
		}
	}
	// What the node masquerades gets the gateway's address, except outside.
	for _, link := range []string{"lo", toRemote, toBeyond} {
		if err := s.Node.AddAddrs(link, gateways()...); err != nil {
			return err
		}
	}
	for _, via := range neighbours() {
		if err := s.links[beyond].Route(everything(via), via); err != nil {
			return err
		}
	}
	if s.config.Bridge != "" {
		if err := errors.Join(s.Node.Bridge(s.config.Bridge), s.Node.AddAddrs(s.config.Bridge, gateways()...)); err != nil {
			return err
		}
	}
	all := []netip.Prefix{everything(netip.IPv4Unspecified()), everything(netip.IPv6Unspecified())}
	s.sniffer, err = testnet.Sniff(testnet.End{NS: s.spaces[beyond], Link: uplink}, s.links[beyond], all...)
	return err
}

func (s *Stage) space(where place) (*testnet.Namespace, error) {
	ns, err := testnet.New(string(where))
	if err == nil {
		s.spaces[where] = ns
	}
	return ns, err
}

// join makes a place other than a pod, with a link to the node.
func (s *Stage) join(where place, link string) error {
	ns, err := s.space(where)
	if err != nil {
		return err
	}
	near, far := testnet.End{NS: s.Node, Link: link}, testnet.End{NS: ns, Link: uplink}
	if err := testnet.Pair(near, far); err != nil {
		return err
	}
	s.links[where] = near
	for _, via := range neighbours() {
		if err := near.Meet(via, far); err != nil {
			return err
		}
	}
	return throughNode(far, near)
}

// throughNode sends everything of a namespace to the node.
func throughNode(far, near testnet.End) error {
	for _, via := range gateways() {
		if err := far.Meet(via, near); err != nil {
			return err
		}
		if err := far.Route(everything(via), via); err != nil {
			return err
		}
	}
	return nil
}

// leave takes away what the next plan does not have.
func (s *Stage) leave(next *plan) error {
	for server, running := range s.servers {
		if !next.servers[server] {
			if err := running.Close(); err != nil {
				return err
			}
			delete(s.servers, server)
		}
	}
	for _, a := range s.now.node {
		if !slices.Contains(next.node, a) {
			if err := s.Node.DelAddr(toOutside, single(a)); err != nil {
				return err
			}
		}
	}
	for _, n := range s.now.networks {
		if !slices.Contains(next.networks, n) {
			if err := s.links[beyond].Unroute(n); err != nil {
				return err
			}
		}
	}
	for a, where := range s.now.homes {
		if next.home(a) == where {
			continue
		}
		if err := s.evict(a, where); err != nil {
			return fmt.Errorf("remove %v from %s: %w", a, where, err)
		}
	}
	return nil
}

func (s *Stage) evict(a netip.Addr, where place) error {
	if where.isPod() {
		// With a veth of its own the route would go with that.
		err := errors.Join(s.router(where).Unroute(single(a)), s.links[where].Remove(), s.spaces[where].Close())
		delete(s.links, where)
		delete(s.spaces, where)
		return err
	}
	err := s.spaces[where].DelAddr("lo", single(a))
	if where == beyond {
		return err
	}
	return errors.Join(err, s.links[where].Unroute(single(a)))
}

// arrive adds what the next plan has and the present one does not.
func (s *Stage) arrive(next *plan) error {
	var added []netip.Addr
	for _, a := range next.node {
		if !slices.Contains(s.now.node, a) {
			added = append(added, a)
		}
	}
	if err := s.Node.AddAddrs(toOutside, added...); err != nil {
		return err
	}
	if err := s.settleAll(next); err != nil {
		return err
	}
	for _, n := range next.networks {
		if !slices.Contains(s.now.networks, n) {
			if err := s.links[beyond].Route(n, sameFamily(neighbours(), n.Addr())); err != nil {
				return err
			}
		}
	}
	for server := range next.servers {
		if s.servers[server] != nil {
			continue
		}
		running, err := s.spaces[server.where].Serve(server.protocol, server.at, server.at.String())
		if err != nil {
			return err
		}
		s.servers[server] = running
	}
	return nil
}

func (s *Stage) settleAll(next *plan) error {
	added := map[place][]netip.Addr{}
	for a, where := range next.homes {
		if s.now.homes[a] == where {
			continue
		}
		if where.isPod() {
			if err := s.addPod(a, where); err != nil {
				return fmt.Errorf("add pod %v: %w", a, err)
			}
			continue
		}
		added[where] = append(added[where], a)
	}
	for where, list := range added {
		if err := s.spaces[where].AddAddrs("lo", list...); err != nil {
			return err
		}
		if where == beyond {
			continue // the node's default route
		}
		for _, a := range list {
			if err := s.links[where].Route(single(a), sameFamily(neighbours(), a)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Stage) addPod(a netip.Addr, where place) error {
	ns, err := s.space(where)
	if err != nil {
		return err
	}
	near, far := testnet.End{NS: s.Node, Link: fmt.Sprintf("veth%d", s.pods)}, testnet.End{NS: ns, Link: uplink}
	s.pods++
	if err := testnet.Pair(near, far); err != nil {
		return err
	}
	s.links[where] = near
	if err := ns.AddAddrs(uplink, a); err != nil {
		return err
	}
	if s.config.Bridge != "" {
		if err := near.Port(s.config.Bridge); err != nil {
			return err
		}
	} else if err := s.Node.AddAddrs(near.Link, gateways()...); err != nil {
		return err
	}
	router := s.router(where)
	return errors.Join(router.Meet(a, far), router.Route(single(a), netip.Addr{}), throughNode(far, router))
}

// router is the interface of the node that has the IP layer towards a pod.
func (s *Stage) router(pod place) testnet.End {
	if s.config.Bridge != "" {
		return testnet.End{NS: s.Node, Link: s.config.Bridge}
	}
	return s.links[pod]
}
