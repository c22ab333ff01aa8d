// Package forwarding reads what the kernel does with packets that are not the node's own, apart from rules: settings of
// each interface, which packets of bridges rules see, and routes as a client's packet gets them. It changes nothing,
// and works in the network namespace of the calling thread.
package forwarding

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
)

// Settings are those of a network namespace.
type Settings struct {
	// Interfaces are all but lo, in the order of their numbers.
	Interfaces []Interface
	// New has the values that an interface gets when it is made.
	New Conf
	// Bridged says whether rules see what a bridge forwards, unless the bridge itself says yes. It is not there where the
	// module br_netfilter is not loaded: then they see nothing, whatever a bridge says.
	Bridged *Bridged
}

// Conf is what the kernel does with packets that come in by an interface.
type Conf struct {
	// Forwards says for each family whether it forwards them.
	Forwards ip.PerFamily[bool]
	// ReversePath is how it judges the source of a packet of IPv4: 0 not at all, 1 by the way back, which has to lead to
	// the interface (strict), 2 by whether there is any (loose).
	ReversePath int
	// WithoutIPv6 says that the kernel drops packets of IPv6 there (disable_ipv6).
	WithoutIPv6 bool
	// RoutesLoopback says that packets to 127.0.0.0/8 may come in (route_localnet).
	RoutesLoopback bool
}

// Bridged says which packets rules see that a bridge forwards (net.bridge.bridge-nf-*).
type Bridged struct {
	Calls ip.PerFamily[bool]
	// VLAN and PPPoE say that it holds for packets with such a header, too.
	VLAN, PPPoE bool
}

// Interface is one of the namespace.
type Interface struct {
	Name string
	Conf
	// Kind is the kernel's word, such as "veth" or "bridge"; "device" for hardware.
	Kind string
	Up   bool
	// Carrier says that something is at the other end.
	Carrier bool
	// Master is the interface that has this one as a port, such as a bridge; empty if none has. Packets then come in by
	// that one.
	Master string
	// Calls is what a bridge itself says of Bridged.Calls.
	Calls ip.PerFamily[bool]
	// Promiscuous says that a bridge takes all packets, whoever they are for. Hairpin says that a bridge may send a packet
	// back by this port, by which it came.
	Promiscuous, Hairpin bool
	// Addressed says for each family whether the interface has an address that is not for the link only.
	Addressed ip.PerFamily[bool]
	// Tagged says that a port gets packets of a bridge with a VLAN's tag.
	Tagged bool
}

// triesInARow is how often an interrupted dump is repeated.
const triesInARow = 10

// Read reads the settings. proc is the directory /proc, or another for tests.
func Read(proc string) (*Settings, error) {
	r := reader{proc: proc}
	s := &Settings{New: r.conf("default")}
	var err error
	for range triesInARow {
		if s.Interfaces, err = interfaces(); !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for i := range s.Interfaces {
		s.Interfaces[i].Conf = r.conf(s.Interfaces[i].Name)
	}
	const bridge = "net/bridge/bridge-nf-"
	if calls, has := r.number(bridge + "call-iptables"); has {
		s.Bridged = &Bridged{VLAN: r.is(bridge + "filter-vlan-tagged"), PPPoE: r.is(bridge + "filter-pppoe-tagged")}
		s.Bridged.Calls = ip.PerFamily[bool]{calls != 0, r.is(bridge + "call-ip6tables")}
	}
	return s, r.err
}

// Interface returns the one of that name; nil if there is none.
func (s *Settings) Interface(name string) *Interface {
	i := slices.IndexFunc(s.Interfaces, func(i Interface) bool { return i.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Interfaces[i]
}

// Sees says whether rules see the packets of a family that a bridge forwards: the namespace's setting or the bridge's
// own asks for it (net/bridge/br_netfilter_hooks.c, br_nf_pre_routing).
func (s *Settings) Sees(bridge *Interface, f ip.Family) bool {
	return s.Bridged != nil && (*s.Bridged.Calls.Of(f) || *bridge.Calls.Of(f))
}

// Ports returns the ports of a bridge that lead to pods or virtual machines.
func (s *Settings) Ports(bridge *Interface) (ports []*Interface) {
	for i := range s.Interfaces {
		if p := &s.Interfaces[i]; p.Master == bridge.Name && slices.Contains([]string{"veth", "tuntap", "macvtap"}, p.Kind) {
			ports = append(ports, p)
		}
	}
	return ports
}

// reader reads settings and keeps the first error. A setting that is not there is none: the kernel, or the interface,
// has no such thing.
type reader struct {
	proc string
	err  error
}

// conf are the settings that hold for an interface, by what the kernel makes of several: it forwards IPv4 by the
// interface's own setting (IN_DEV_FORWARD), IPv6 by that of all, or from Linux 6.17 on by force_forwarding
// (ip6_forward), judges the source by the greater of both (IN_DEV_RPFILTER), takes packets to loopback by either
// (IN_DEV_ROUTE_LOCALNET), and drops IPv6 by its own (ip6_rcv_core). An interface that has just gone has none.
func (r *reader) conf(name string) Conf {
	v4, v6 := "net/ipv4/conf/", "net/ipv6/conf/"
	all, _ := r.number(v4 + "all/rp_filter")
	own, _ := r.number(v4 + name + "/rp_filter")
	forwards, has := r.number(v4 + name + "/forwarding")
	return Conf{
		Forwards: ip.PerFamily[bool]{forwards != 0 || !has, r.is(v6+"all/forwarding") ||
			r.is(v6+name+"/force_forwarding")},
		ReversePath:    max(all, own),
		WithoutIPv6:    r.is(v6 + name + "/disable_ipv6"),
		RoutesLoopback: r.is(v4+"all/route_localnet") || r.is(v4+name+"/route_localnet"),
	}
}

func (r *reader) is(path string) bool {
	n, _ := r.number(path)
	return n != 0
}

func (r *reader) number(path string) (n int, has bool) {
	text, err := os.ReadFile(filepath.Join(r.proc, "sys", path))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false
	}
	if err == nil {
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("read the setting %s: %w", path, err)
	}
	return n, err == nil
}

// interfaces lists the interfaces without their settings.
func interfaces() ([]Interface, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(links, func(a, b netlink.Link) int { return a.Attrs().Index - b.Attrs().Index })
	calls, hairpins, err := bridging()
	if err != nil {
		return nil, err
	}
	vlans, err := netlink.BridgeVlanList()
	if err != nil {
		return nil, err
	}
	addressed, err := addressed()
	if err != nil {
		return nil, err
	}
	filtering, names := map[int]bool{}, map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		if b, is := l.(*netlink.Bridge); is && b.VlanFiltering != nil {
			filtering[l.Attrs().Index] = *b.VlanFiltering
		}
	}
	var list []Interface
	for _, l := range links {
		a := l.Attrs()
		if a.RawFlags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		list = append(list, Interface{
			Name: a.Name, Kind: l.Type(), Up: a.RawFlags&unix.IFF_UP != 0,
			Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0, Master: names[a.MasterIndex], Calls: calls[a.Index],
			Promiscuous: a.Promisc != 0, Hairpin: hairpins[a.Index], Addressed: addressed[a.Index],
			Tagged: filtering[a.MasterIndex] && slices.ContainsFunc(vlans[int32(a.Index)], func(v *nl.BridgeVlanInfo) bool {
				return !v.EngressUntag()
			}),
		})
	}
	return list, nil
}

// addressed says which interfaces have an address of each family that is not for the link only, by their numbers.
func addressed() (map[int]ip.PerFamily[bool], error) {
	found := map[int]ip.PerFamily[bool]{}
	for _, f := range ip.Families() {
		list, err := netlink.AddrList(nil, int(f))
		if err != nil {
			return nil, err
		}
		for _, a := range list {
			if !a.IP.IsLinkLocalUnicast() {
				has := found[a.LinkIndex]
				*has.Of(f) = true
				found[a.LinkIndex] = has
			}
		}
	}
	return found, nil
}

// bridging returns what each bridge itself says of the packets that rules see, and which ports are in hairpin mode, by
// their numbers.
func bridging() (calls map[int]ip.PerFamily[bool], hairpins map[int]bool, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, nil, err
	}
	calls, hairpins = map[int]ip.PerFamily[bool]{}, map[int]bool{}
	for _, m := range messages {
		link := nl.DeserializeIfInfomsg(m)
		info := attributes(attributes(m[link.Len():])[unix.IFLA_LINKINFO])
		is := func(values map[uint16][]byte, name uint16) bool { v := values[name]; return len(v) == 1 && v[0] != 0 }
		if unix.ByteSliceToString(info[nl.IFLA_INFO_KIND]) == "bridge" {
			values := attributes(info[nl.IFLA_INFO_DATA])
			calls[int(link.Index)] = ip.PerFamily[bool]{is(values, nl.IFLA_BR_NF_CALL_IPTABLES),
				is(values, nl.IFLA_BR_NF_CALL_IP6TABLES)}
		}
		if unix.ByteSliceToString(info[nl.IFLA_INFO_SLAVE_KIND]) == "bridge" {
			hairpins[int(link.Index)] = is(attributes(info[nl.IFLA_INFO_SLAVE_DATA]), nl.IFLA_BRPORT_MODE)
		}
	}
	return calls, hairpins, nil
}

// typeMask leaves out the flags of an attribute's type (NLA_TYPE_MASK in uapi/linux/netlink.h).
const typeMask = 1<<14 - 1

// attributes reads netlink attributes, as far as they can be read.
func attributes(b []byte) map[uint16][]byte {
	list, _ := nl.ParseRouteAttr(b)
	found := map[uint16][]byte{}
	for _, a := range list {
		found[a.Attr.Type&typeMask] = a.Value
	}
	return found
}
