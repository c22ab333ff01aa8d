package ruleset

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"nftproxy/internal/service"
	"nftproxy/nft"
)

// readEntry is what an address with protocol and port, or a node port, gets
// according to a table.
type readEntry struct {
	v6 bool
	// addr is not valid for a node port.
	addr     netip.Addr
	protocol service.Protocol
	port     uint16
	comment  string

	// restricted is whether only the sources may reach it; by is the comment
	// that says whose firewall it is, empty where it lets nobody in.
	restricted bool
	sources    []netip.Prefix
	by         string
	// external says that outsiders have a list of their own, all is everybody
	// else's; without it all is for everybody.
	external bool
	all, own []netip.AddrPort
	// drop says that there are endpoints, but not on the node.
	drop       bool
	masquerade bool
	affinity   time.Duration
}

func (e *readEntry) nodePort() bool { return !e.addr.IsValid() }

func (e *readEntry) claim() service.Claim {
	if e.nodePort() {
		return service.NodePortClaim(e.v6, &service.Port{Protocol: e.protocol, NodePort: e.port})
	}
	return service.Claim{Addr: e.addr, Protocol: e.protocol, Port: e.port}
}

// entranceReader reads the entries of one entrance of a table.
type entranceReader struct {
	*entrance
	contents *nft.Contents
	family   nft.Family
	// all and own are the targets of each list, and sources the elements that
	// say who may reach an entry.
	all, own map[nft.Value][]netip.AddrPort
	sources  map[nft.Value][]nft.Element
}

func (r *entranceReader) read(element nft.Element) *readEntry {
	e := &readEntry{v6: r.family == nft.IPv6, comment: element.Comment}
	key := fieldReader{element.Key, r.family}
	if r.entrance.key[0] == nft.Daddr {
		e.addr = key.addr()
	}
	e.protocol, e.port = key.protocol(), key.port()
	verdict := element.Verdict
	if verdict.Chain == sourceRanges {
		e.restricted = true
		for _, source := range r.sources[element.Key] {
			e.by = source.Comment
			if p, ok := prefixOf(addrOf(source.Key[len(element.Key):]), addrOf(source.KeyEnd[len(element.Key):])); ok {
				e.sources = append(e.sources, p)
			}
		}
		verdict = r.element(servicesRestricted, element.Key).Verdict
	}
	e.external = verdict.Chain == r.entrance.external
	e.drop = verdict.Code == nft.Drop
	e.masquerade = strings.Contains(verdict.Chain, "-masquerade")
	if !e.drop && verdict.Chain != refuse {
		e.all, e.own = r.all[element.Key], r.own[element.Key]
	}
	if _, seconds, ok := strings.Cut(r.element(r.learners, element.Key).Verdict.Chain, "learn-"); ok {
		n, _ := strconv.Atoi(seconds)
		e.affinity = time.Duration(n) * time.Second
	}
	return e
}

func (r *entranceReader) element(set string, key nft.Value) nft.Element {
	if s := r.contents.Sets[set]; s != nil {
		return s.Elements[key]
	}
	return nft.Element{}
}

// poolTargets are the targets of each list in a map of endpoints, sorted.
func poolTargets(c *nft.Contents, name string, f nft.Family) map[nft.Value][]netip.AddrPort {
	s := c.Sets[name]
	if s == nil {
		return nil
	}
	// One piece of memory for all lists.
	counts := map[nft.Value]int{}
	for key := range s.Elements {
		at, _ := key.SplitIndex()
		counts[at]++
	}
	lists, all := make(map[nft.Value][]netip.AddrPort, len(counts)), make([]netip.AddrPort, len(s.Elements))
	for at, n := range counts {
		lists[at], all = all[:0:n], all[n:]
	}
	for key, e := range s.Elements {
		at, _ := key.SplitIndex()
		data := fieldReader{e.Data, f}
		lists[at] = append(lists[at], netip.AddrPortFrom(data.addr(), data.port()))
	}
	for at, list := range lists {
		slices.SortFunc(list, netip.AddrPort.Compare)
		lists[at] = slices.Compact(list)
	}
	return lists
}

// readSources are the elements that say who may reach each restricted entry.
func readSources(c *nft.Contents, f nft.Family) map[nft.Value][]nft.Element {
	sources := map[nft.Value][]nft.Element{}
	for _, e := range sortedElements(c, sourceRanges) {
		at := e.Key[:len(e.Key)-f.AddrLen()]
		sources[at] = append(sources[at], e)
	}
	return sources
}

// prefixOf is the prefix that goes from the first address to the last.
func prefixOf(first, last netip.Addr) (netip.Prefix, bool) {
	for bits := range first.BitLen() + 1 {
		if p := netip.PrefixFrom(first, bits); p == p.Masked() && nft.LastAddr(p) == last {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// addrOf is a value that is an address and nothing else.
func addrOf(v nft.Value) netip.Addr {
	a, _ := netip.AddrFromSlice([]byte(v))
	return a
}

// fieldReader takes one field after the other off a value.
type fieldReader struct {
	left   nft.Value
	family nft.Family
}

func (r *fieldReader) addr() netip.Addr { return addrOf(r.take(r.family.AddrLen())) }

func (r *fieldReader) protocol() service.Protocol { return service.Protocol(r.take(4)[0]) }

func (r *fieldReader) port() uint16 { return binary.BigEndian.Uint16([]byte(r.take(4))) }

func (r *fieldReader) take(n int) nft.Value {
	field := r.left[:n]
	r.left = r.left[n:]
	return field
}
