package watch

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netutils "k8s.io/utils/net"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// identity is the part of an object's metadata that the index keeps.
type identity struct {
	key service.Name
	// version is the version of the resource that the object was written at.
	version string
	// problems are what cannot be used of the object. text are those of a manifest's text, before it became an object:
	// whoever reads the file reports them.
	problems, text []Problem
}

func identify(m *metav1.ObjectMeta) identity {
	return identity{key: service.NewName(m.Namespace, m.Name), version: m.ResourceVersion}
}

func (i *identity) meta() *identity { return i }

func (i *identity) service() service.Name { return "" }

// keepText keeps the problems of a manifest's text. What the object's own problems say of values that were left out is
// the same mistake once more.
func (i *identity) keepText(text []Problem) {
	i.text = text
	i.problems = slices.DeleteFunc(i.problems, func(p Problem) bool {
		return slices.ContainsFunc(text, func(t Problem) bool {
			rest, within := strings.CutPrefix(p.Field, t.Field)
			return within && errors.As(t.Err, new(lostError)) && (rest == "" || rest[0] == '.' || rest[0] == '[')
		})
	})
}

// GetResourceVersion returns the object's version.
func (i *identity) GetResourceVersion() string { return i.version }

// maxProblems is how many problems of one object are listed. The others are counted: a
// slice can have 1,000 endpoints, each of them wrong.
const maxProblems = 10

// problemList collects the problems of one object.
type problemList struct {
	object Object
	list   []Problem
	more   int
}

func problemsOf(kind string, m *metav1.ObjectMeta) *problemList {
	return &problemList{object: Object{Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: string(m.UID)}}
}

func (p *problemList) add(field string, err error) {
	if p.full() {
		p.more++
		return
	}
	p.list = append(p.list, Problem{Object: p.object, Field: field, Err: err})
}

// full says that further problems are counted only.
func (p *problemList) full() bool { return len(p.list) == maxProblems }

func (p *problemList) addValue(field, value, reason string) {
	p.add(field, &ValueError{Value: value, Reason: reason})
}

func (p *problemList) all() []Problem {
	if p.more > 0 {
		return append(p.list, Problem{Object: p.object, Err: fmt.Errorf("and %d more problems", p.more)})
	}
	return p.list
}

// parseAddr reads an address as kube-proxy does: numbers with leading zeros are
// decimal, and an IPv4-mapped IPv6 address is IPv4. An address with a zone is an error.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		ok := false
		if addr, ok = netip.AddrFromSlice(netutils.ParseIPSloppy(text)); !ok {
			return netip.Addr{}, &ValueError{Value: text, Reason: "not an IP address"}
		}
	}
	if addr = addr.Unmap(); addr.IsUnspecified() {
		return netip.Addr{}, &ValueError{Value: text, Reason: "not the address of anything"}
	}
	return addr, nil
}

// parseCIDR reads a range as kube-proxy does: numbers may have leading zeros, the
// address may have bits beyond the length, and an IPv4-mapped IPv6 range is IPv4.
func parseCIDR(text string) (netip.Prefix, error) {
	_, ipnet, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, &ValueError{Value: text, Reason: "not a CIDR"}
	}
	addr, _ := netip.AddrFromSlice(ipnet.IP)
	bits, _ := ipnet.Mask.Size()
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits), nil
}

// family is the API's name for the family of an address.
func family(a netip.Addr) corev1.IPFamily { return corev1.IPFamily(ip.Of(a).Name()) }

// parseProtocol reads a protocol. A missing one is TCP, the API's default.
func parseProtocol(p *corev1.Protocol) (service.Protocol, error) {
	if p == nil || *p == "" {
		return service.TCP, nil
	}
	protocol, err := service.ParseProtocol(string(*p))
	if err != nil {
		return 0, &ValueError{Value: string(*p), Reason: "not TCP, UDP or SCTP"}
	}
	return protocol, nil
}

func parsePort(n int32) (uint16, error) {
	if n < 1 || n > 65535 {
		return 0, &ValueError{Value: strconv.Itoa(int(n)), Reason: "not in 1 to 65535"}
	}
	return uint16(n), nil
}

// checkName returns an error for a name that no API server accepts and that would
// break the texts with names in them. It checks less than RFC 1123 asks.
func checkName(s string) error {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return &ValueError{Value: s, Reason: "not a name: want letters, digits, '-', '.' and '_'"}
		}
	}
	if len(s) > 253 || strings.HasPrefix(s, "-") {
		return &ValueError{Value: s, Reason: "not a name: longer than 253 bytes or starting with '-'"}
	}
	return nil
}

// item names an item of a field. It is for problems: for each item it would take a tenth of the time of decoding.
func item(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }
