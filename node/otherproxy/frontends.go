package otherproxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/nfnetlink"
)

// Frontend is an address, protocol and port that rules lead to a Service, or refuse for it. Node
// ports are not among the frontends of this package.
type Frontend struct {
	Protocol uint8 // the IP protocol's number
	Addr     netip.AddrPort
}

// String is, for example, "10.96.0.10:53/udp".
func (f Frontend) String() string {
	name := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}[f.Protocol]
	if name == "" {
		name = fmt.Sprint(f.Protocol)
	}
	return fmt.Sprintf("%v/%s", f.Addr, name)
}

// Frontends is a set of frontends.
type Frontends map[Frontend]bool

// OurFrontends returns the frontends in nftproxy's tables of that name.
func OurFrontends(table string) (Frontends, error) {
	return readFrontends(func(c *conn, found Frontends) error { return c.addMaps(found, table, "services") })
}

// KubeProxyFrontends returns the frontends in kube-proxy's rules, of nftables, iptables and IPVS.
func KubeProxyFrontends() (Frontends, error) {
	return readFrontends(func(c *conn, found Frontends) error {
		if err := c.addMaps(found, kubeProxyTable, "service-ips", "no-endpoint-services"); err != nil {
			return err
		}
		for _, f := range ip.Families() {
			for _, in := range frontendChains() {
				if err := c.addRules(found, f, in.table, in.chain); err != nil {
					return fmt.Errorf("read chain %s in table %s: %w", in.chain, tableName(f, in.table), err)
				}
			}
			if err := addLegacyRules(found, f); err != nil {
				return err
			}
		}
		return addVirtualServers(c, found)
	})
}

// frontendChain is a chain of iptables whose rules have the frontends.
type frontendChain struct{ table, chain string }

// frontendChains has one chain for Services with endpoints, and two for those without.
func frontendChains() []frontendChain {
	return []frontendChain{{"nat", "KUBE-SERVICES"}, {"filter", "KUBE-SERVICES"}, {"filter", "KUBE-EXTERNAL-SERVICES"}}
}

func readFrontends(read func(*conn, Frontends) error) (Frontends, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.close()
	found := Frontends{}
	return found, read(c, found)
}

// addMaps adds the keys of maps whose keys are address . protocol . port.
func (c *conn) addMaps(found Frontends, table string, maps ...string) error {
	for _, f := range ip.Families() {
		for _, name := range maps {
			of := named(unix.NFTA_SET_ELEM_LIST_TABLE, table).Text(unix.NFTA_SET_ELEM_LIST_SET, name)
			err := c.ask(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, f, of, func(a nfnetlink.Attributes) error {
				return addElements(found, a.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS))
			})
			if err != nil {
				return fmt.Errorf("read map %s in table %s: %w", name, tableName(f, table), err)
			}
		}
	}
	return nil
}

func addElements(found Frontends, list nfnetlink.Attributes) (err error) {
	for _, element := range list.Strict(&err) {
		// Each field of a key fills four bytes, or a multiple.
		value := element.Get(unix.NFTA_SET_ELEM_KEY).Get(unix.NFTA_DATA_VALUE)
		at := len(value) - 8
		if at < 0 {
			continue
		}
		if addr, ok := netip.AddrFromSlice(value[:at]); ok {
			found[Frontend{value[at], netip.AddrPortFrom(addr, binary.BigEndian.Uint16(value[at+4:]))}] = true
		}
	}
	return err
}

// addRules adds the frontends of the rules in a chain of iptables-nft.
func (c *conn) addRules(found Frontends, f ip.Family, table, chain string) error {
	return c.rules(f, table, chain, func(a nfnetlink.Attributes) error {
		m := matches{family: f}
		if err := m.read(a.Get(unix.NFTA_RULE_EXPRESSIONS)); err != nil {
			return err
		}
		found.add(m)
		return nil
	})
}

// add adds what a rule matches, if that is a frontend.
func (s Frontends) add(m matches) {
	if addr, ok := netip.AddrFromSlice(m.addr); ok && m.protocol != 0 && m.port != 0 {
		s[Frontend{m.protocol, netip.AddrPortFrom(addr, m.port)}] = true
	}
}

// addLegacyRules does the same for the tables of iptables-legacy.
func addLegacyRules(found Frontends, f ip.Family) error {
	for _, table := range iptablesTables() {
		b, err := readLegacy(f, table)
		if err != nil {
			return fmt.Errorf("read table %s of iptables-legacy: %w", tableName(f, table), err)
		}
		for i := range b.entries {
			if e := &b.entries[i]; !e.head && slices.Contains(frontendChains(), frontendChain{table, e.chain}) {
				found.add(e.matches(f))
			}
		}
	}
	return nil
}
