package otherproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

const (
	ipsetNamesOnly  = 1 << 1 // IPSET_FLAG_LIST_SETNAME (uapi/linux/netfilter/ipset/ip_set.h)
	longestSetName  = nl.IPSET_MAXNAMELEN - 1
	ipsetPrefix     = "KUBE-"
	ipsetPrefixIPv6 = "KUBE-6-"
)

// ipsetNames lists kube-proxy's sets of IPv4 (k8s.io/kubernetes/pkg/proxy/ipvs, ipsetInfo).
func ipsetNames() []string {
	return []string{
		"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER",
		"KUBE-LOAD-BALANCER-FW",
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

// ErrSetUsed says that an ipset of kube-proxy's cannot be removed.
var ErrSetUsed = errors.New("a rule uses the ipset")

// setNames returns kube-proxy's ipsets that are there.
func setNames() (found []string, err error) {
	if _, err := os.Stat("/sys/module/ip_set"); err != nil {
		return nil, nil // The kernel has no ipsets now. Asking for them would load their module.
	}
	ours := map[string]bool{}
	for _, name := range ipsetNames() {
		ours[name], ours[ipsetNameOf6(name)] = true, true
	}
	err = listSets(listRequest().Uint32(nl.IPSET_ATTR_FLAGS, ipsetNamesOnly), func(a nfnetlink.Attributes) {
		if name := a.Text(nl.IPSET_ATTR_SETNAME); ours[name] {
			found = append(found, name)
		}
	})
	slices.Sort(found)
	return found, err
}

// setPorts visits the ports of an ipset's elements. A set that is not there has none.
func setPorts(set string, visit func(uint16)) error {
	err := listSets(listRequest().Text(nl.IPSET_ATTR_SETNAME, set), func(a nfnetlink.Attributes) {
		for _, element := range a.Get(nl.IPSET_ATTR_ADT).All() {
			if v := element.Get(nl.IPSET_ATTR_PORT); len(v) == 2 {
				visit(binary.BigEndian.Uint16(v))
			}
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func listRequest() *nfnetlink.Encoder {
	return new(nfnetlink.Encoder).Uint8(nl.IPSET_ATTR_PROTOCOL, nl.IPSET_PROTOCOL)
}

// listSets visits each part of the kernel's answer about ipsets. netlink.IpsetListAll (v1.3.1) reads the elements of
// other programs' sets, too, and netlink.IpsetList writes a line to the log for each attribute that it does not know:
// on Linux 6.18 two for each set.
func listSets(of *nfnetlink.Encoder, visit func(nfnetlink.Attributes)) error {
	s, err := nfnetlink.Dial(nfnetlink.Config{})
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer s.Close()
	r := nfnetlink.Requester{Socket: s, Subsystem: unix.NFNL_SUBSYS_IPSET}
	err = r.Receive(nl.IPSET_CMD_LIST, unix.NLM_F_DUMP, unix.AF_UNSPEC, of.B, func(m nfnetlink.Message) error {
		if err := m.Attributes().Check(); err != nil {
			return err
		}
		visit(m.Attributes())
		return nil
	})
	if err != nil {
		return fmt.Errorf("list ipsets: %w", err)
	}
	return nil
}

// destroySet removes an ipset. One that is not there is no error; ErrSetUsed says that a rule uses it.
func destroySet(set string) error {
	err := netlink.IpsetDestroy(set)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)):
		return fmt.Errorf("%s: %w", set, ErrSetUsed)
	}
	return fmt.Errorf("remove ipset %s: %w", set, err)
}
