package otherproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

// Commands and attributes of ipsets (uapi/linux/netfilter/ipset/ip_set.h), which x/sys/unix lacks.
const (
	ipsetDestroy = 3
	ipsetList    = 7

	ipsetProtocol = 1
	ipsetName     = 2
	ipsetFlags    = 6
	ipsetElements = 8

	ipsetNamesOnly = 1 << 1 // IPSET_FLAG_LIST_SETNAME

	ipsetData       = 7 // an element
	ipsetPort       = 4
	ipsetVersion    = 6 // of the protocol: kernels from 2.6.39 on
	errIPSetUsed    = unix.Errno(4100)
	longestSetName  = 31
	ipsetPrefix     = "KUBE-"
	ipsetPrefixIPv6 = "KUBE-6-"
)

// ipsetNames lists kube-proxy's sets of IPv4 (k8s.io/kubernetes/pkg/proxy/ipvs, ipsetInfo).
func ipsetNames() []string {
	return []string{
		"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-FW",
		"KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-NODE-PORT-TCP",
		"KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP", "KUBE-NODE-PORT-SCTP-HASH",
		"KUBE-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS",
	}
}

// ipsetNameOf6 is the name of the set of IPv6, which kube-proxy cuts to the length that the kernel takes.
func ipsetNameOf6(name string) string {
	name = ipsetPrefixIPv6 + strings.TrimPrefix(name, ipsetPrefix)
	return name[:min(len(name), longestSetName)]
}

// nodePortSets has the sets of node ports, whose elements are ports of a protocol.
func nodePortSets() map[string]uint8 {
	return map[string]uint8{"KUBE-NODE-PORT-TCP": unix.IPPROTO_TCP, "KUBE-NODE-PORT-UDP": unix.IPPROTO_UDP, "KUBE-NODE-PORT-SCTP-HASH": unix.IPPROTO_SCTP}
}

// ErrSetUsed says that an ipset of kube-proxy's cannot be removed.
var ErrSetUsed = errors.New("a rule uses the ipset")

// ipsets asks the kernel for ipsets.
type ipsets struct{ nfnetlink.Requester }

// dialIPSets returns nil if the kernel has no ipsets now: asking for them would load their module.
func dialIPSets() (*ipsets, error) {
	if _, err := os.Stat("/sys/module/ip_set"); err != nil {
		return nil, nil
	}
	s, err := nfnetlink.Dial(nfnetlink.Config{})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	i := &ipsets{}
	i.Socket, i.Subsystem = s, unix.NFNL_SUBSYS_IPSET
	return i, nil
}

func (i *ipsets) close() {
	if i != nil {
		_ = i.Socket.Close()
	}
}

// names returns kube-proxy's sets that are there.
func (i *ipsets) names() (found []string, err error) {
	if i == nil {
		return nil, nil
	}
	ours := map[string]bool{}
	for _, name := range ipsetNames() {
		ours[name], ours[ipsetNameOf6(name)] = true, true
	}
	of := new(nfnetlink.Encoder).Uint8(ipsetProtocol, ipsetVersion).Uint32(ipsetFlags, ipsetNamesOnly)
	err = i.Receive(ipsetList, unix.NLM_F_DUMP, unix.AF_UNSPEC, of.B, func(m nfnetlink.Message) error {
		if name := m.Attributes().Text(ipsetName); ours[name] {
			found = append(found, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	slices.Sort(found)
	return found, nil
}

// ports visits the ports of a set's elements. A set that is not there has none.
func (i *ipsets) ports(set string, visit func(uint16)) error {
	of := new(nfnetlink.Encoder).Uint8(ipsetProtocol, ipsetVersion).Text(ipsetName, set)
	err := i.Receive(ipsetList, unix.NLM_F_DUMP, unix.AF_UNSPEC, of.B, func(m nfnetlink.Message) error {
		if err := m.Attributes().Check(); err != nil {
			return err
		}
		for kind, data := range m.Attributes().Get(ipsetElements).All() {
			if kind != ipsetData {
				continue
			}
			var port uint16
			if v := data.Get(ipsetPort); len(v) == 2 {
				port = binary.BigEndian.Uint16(v)
			}
			visit(port)
		}
		return nil
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("list ipset %s: %w", set, err)
	}
	return nil
}

// destroy removes a set. One that is not there is no error; ErrSetUsed says that a rule uses it.
func (i *ipsets) destroy(set string) error {
	of := new(nfnetlink.Encoder).Uint8(ipsetProtocol, ipsetVersion).Text(ipsetName, set)
	err := i.Receive(ipsetDestroy, unix.NLM_F_ACK, unix.AF_UNSPEC, of.B, func(nfnetlink.Message) error { return nil })
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, errIPSetUsed):
		return fmt.Errorf("%s: %w", set, ErrSetUsed)
	}
	return fmt.Errorf("remove ipset %s: %w", set, err)
}
