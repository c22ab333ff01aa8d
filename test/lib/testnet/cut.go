package testnet

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cut drops all that TCP servers of the namespace send from an address and port to
// other hosts, until it is repaired: peers see what they see of a broken network, and
// connections that are open stay so. Clients in the namespace itself notice nothing.
func (ns *Namespace) Cut(from netip.AddrPort) (repair func() error, err error) {
	rule := netlink.NewRule()
	rule.Family, rule.IPProto, rule.Type = family(from.Addr()), unix.IPPROTO_TCP, unix.FR_ACT_BLACKHOLE
	rule.Src = ipNet(netip.PrefixFrom(from.Addr(), from.Addr().BitLen()))
	rule.Sport = netlink.NewRulePortRange(from.Port(), from.Port())
	rule.Priority = 1 // after the one of the namespace's own addresses
	if err := ns.handle.RuleAdd(rule); err != nil {
		return nil, fmt.Errorf("cut %v off in %s: %w", from, ns.name, err)
	}
	return func() error {
		if err := ns.handle.RuleDel(rule); err != nil {
			return fmt.Errorf("repair the cut of %v in %s: %w", from, ns.name, err)
		}
		return nil
	}, nil
}
