package ruleset

import (
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/nft"
)

// readFrontends reads all frontends of one table.
func readFrontends(f nft.Family, c *nft.Contents) []*Frontend {
	var frontends []*Frontend
	sources, itself := readSources(c, f), readItself(c, f)
	for _, a := range accessWithRanges() {
		r := &frontendReader{
			access: a, contents: c, family: f,
			cluster: poolTargets(c, a.endpoints, f, a.keepsPort), local: poolTargets(c, a.localEndpoints, f, a.keepsPort),
			sources: sources, itself: itself,
		}
		for _, element := range sortedElements(c, a.verdicts) {
			frontends = append(frontends, r.read(element))
		}
	}
	return frontends
}

// frontendReader reads the frontends of one access.
type frontendReader struct {
	*access
	contents *nft.Contents
	family   nft.Family
	// cluster and local have the targets of each frontend's lists.
	cluster, local map[nft.Value]readList
	// sources has the ranges that each chain lets in, itself the load balancers'
	// addresses that may reach each frontend.
	sources map[string]*service.Sources
	itself  map[nft.Value][]netip.Prefix
}

func (r *frontendReader) read(element nft.Element) *Frontend {
	f := &Frontend{Family: r.family, commentCut: isCut(element.Comment), reader: r, key: element.Key}
	f.comment, f.alsoClusterIP = strings.CutPrefix(element.Comment, alsoClusterIPOf)
	claim := r.claimOf(r.family, element.Key)
	if f.Protocol, f.Port = claim.Protocol, claim.Port; r.key[0] == nft.Daddr {
		f.Addr = claim.Addr
	}
	if r.keepsPort {
		f.Ranges = readRangeList(r.contents, r.element(portRanges, element.Key).Verdict.Chain)
	}
	verdict := element.Verdict
	if sources, restricted := r.sources[strings.TrimPrefix(verdict.Chain, r.chainPrefix)]; restricted {
		behind := r.element(r.access.restricted, element.Key)
		f.Sources, f.list, verdict = sources, sources, behind.Verdict
		f.by, _ = strings.CutPrefix(behind.Comment, alsoClusterIPOf)
		if itself := r.itself[element.Key]; len(itself) > 0 {
			f.Sources = service.NewSources(append(itself, sources.Ranges()...))
		}
	}
	f.twoLists = verdict.Chain == r.externalChain
	f.Fate, f.hold = r.fate(verdict, element.Key), holdOf(verdict.Chain)
	shared, _ := parseShared(verdict.Chain)
	f.localOnly = shared.lists == localList
	if f.Fate != obstacle.Dropped && f.Fate != obstacle.Refused && f.Fate != obstacle.Held {
		cluster, local := r.cluster[element.Key], r.local[element.Key]
		chains := []string{verdict.Chain, r.element(r.clusterVerdicts, element.Key).Verdict.Chain,
			r.element(r.localVerdicts, element.Key).Verdict.Chain}
		for _, chain := range chains {
			shared, ok := parseShared(chain)
			if ok {
				f.flows = cmp.Or(f.flows, shared.ownFlows(readFlows(r.contents)))
			}
			f.balance, f.timeouts = cmp.Or(f.balance, shared.balance), cmp.Or(f.timeouts, shared.timeouts)
		}
		if f.balance.Hashes() {
			cluster.forgetEven()
			local.forgetEven()
		}
		f.Cluster, f.ClusterSlots, f.Local, f.LocalSlots = cluster.targets, cluster.slots, local.targets, local.slots
	}
	learner, _ := parseShared(r.element(r.learners, element.Key).Verdict.Chain)
	f.Affinity, f.servicePort = learner.learn, numberOf(learner.clients)
	if !f.IsNodePort() {
		f.servicePort = f.Port
	}
	return f
}

// fate reads what happens to the frontend's connections from its verdict, and from that for clients outside.
func (r *frontendReader) fate(verdict nft.Verdict, key nft.Value) obstacle.Fate {
	outside := r.element(r.localVerdicts, key).Verdict
	switch {
	case verdict.Code == nft.Accept:
		return obstacle.Passed
	case verdict.Code == nft.Drop, verdict.Chain == r.refusalChain(NoLocalEndpoints): // earlier versions dropped here
		return obstacle.Dropped
	case holdOf(verdict.Chain) > 0:
		return obstacle.Held
	case verdict.Chain == refuse, verdict.Chain == r.refusalChain(NoEndpoints):
		return obstacle.Refused
	case verdict.Chain != r.externalChain, len(r.local[key].targets) > 0, outside.Chain != "":
		return obstacle.Served
	case outside.Code == nft.Accept:
		return obstacle.PassedOutside
	}
	return obstacle.DroppedOutside
}

// failover is what the Service asks for where the node has no endpoint for clients outside, as far as the frontend
// shows it.
func (f *Frontend) failover() service.Failover {
	switch {
	case f.Fate == obstacle.Passed, f.Fate == obstacle.PassedOutside:
		return service.FailoverPass
	case f.twoLists && f.Fate == obstacle.Served && len(f.Local) == 0:
		return service.FailoverCluster
	}
	return service.FailoverDrop
}

// numberOf is the port of a Service by the name of its clients (clientsOf), 0 if that was cut.
func numberOf(of clients) uint16 {
	n, _ := strconv.ParseUint(of.name[strings.LastIndexByte(of.name, '/')+1:], 10, 16)
	return uint16(n)
}

func (r *frontendReader) element(set string, key nft.Value) nft.Element {
	if s := r.contents.Sets[set]; s != nil {
		return s.Elements[key]
	}
	return nft.Element{}
}

// readList is a list of endpoints as a table has it.
type readList struct {
	// targets are sorted, each once. slots says how many slots each has; nil where each has one.
	targets []netip.AddrPort
	slots   map[netip.AddrPort]int
}

// has says whether the endpoint is in the list.
func (l *readList) has(a netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(l.targets, a, netip.AddrPort.Compare)
	return found
}

// forgetEven takes the numbers of slots away if they are those of equal weights in a table of hashes, whose size is no
// multiple of the number of endpoints: the first ones have a slot more.
func (l *readList) forgetEven() {
	all := 0
	for _, n := range l.slots {
		all += n
	}
	for i, a := range l.targets {
		even := all / len(l.targets)
		if i < all%len(l.targets) {
			even++
		}
		if l.slots[a] != even {
			return
		}
	}
	l.slots = nil
}

// mayBeEven says whether feedback may have made the slots of equal weights.
func (l *readList) mayBeEven() bool {
	return l.slots == nil || share.IsLeastRow(slices.Collect(maps.Values(l.slots)))
}

// slotsOf returns how many slots an endpoint of the list has.
func (l *readList) slotsOf(a netip.AddrPort) int {
	if l.slots == nil {
		return 1
	}
	return l.slots[a]
}

// poolTargets returns each list in a map of endpoints, whose ports are 0 if the map has none.
func poolTargets(c *nft.Contents, name string, f nft.Family, withoutPort bool) map[nft.Value]readList {
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
	slotsOf, all := make(map[nft.Value][]netip.AddrPort, len(counts)), make([]netip.AddrPort, len(s.Elements))
	for at, n := range counts {
		slotsOf[at], all = all[:0:n], all[n:]
	}
	for key, e := range s.Elements {
		at, _ := key.SplitIndex()
		data := fieldReader{e.Data, f}
		to := netip.AddrPortFrom(data.addr(), 0)
		if !withoutPort {
			to = netip.AddrPortFrom(to.Addr(), data.port())
		}
		slotsOf[at] = append(slotsOf[at], to)
	}
	lists := make(map[nft.Value]readList, len(slotsOf))
	for at, list := range slotsOf {
		slices.SortFunc(list, netip.AddrPort.Compare)
		lists[at] = readListOf(list)
	}
	return lists
}

// readListOf returns the list whose slots, sorted, have these targets. It keeps the slice.
func readListOf(list []netip.AddrPort) readList {
	n := len(list)
	slots := map[netip.AddrPort]int{}
	for i := 1; i < n; i++ {
		if list[i] == list[i-1] {
			slots[list[i]]++
		}
	}
	targets := slices.Compact(list)
	if len(targets) == n {
		return readList{targets: targets}
	}
	for _, a := range targets {
		slots[a]++
	}
	return readList{targets, slots}
}

// readSources returns the lists of ranges, by the name of their set.
func readSources(c *nft.Contents, f nft.Family) map[string]*service.Sources {
	sources := map[string]*service.Sources{}
	for name, s := range c.Sets {
		if !strings.HasPrefix(name, sourceRanges) || !s.Set.Interval || s.Set.Key.Len(f) != f.AddrLen() {
			continue
		}
		ranges := make([]netip.Prefix, 0, len(s.Elements))
		for _, e := range s.Elements {
			if p, ok := prefixOf(addrOf(e.Key), addrOf(e.KeyEnd)); ok {
				ranges = append(ranges, p)
			}
		}
		sources[name] = service.NewSources(ranges)
	}
	return sources
}

// readItself returns the load balancers' addresses that may reach each frontend.
func readItself(c *nft.Contents, f nft.Family) map[nft.Value][]netip.Prefix {
	itself := map[nft.Value][]netip.Prefix{}
	for _, e := range sortedElements(c, loadBalancerSources) {
		at := len(e.Key) - f.AddrLen()
		a := addrOf(e.Key[at:])
		itself[e.Key[:at]] = append(itself[e.Key[:at]], netip.PrefixFrom(a, a.BitLen()))
	}
	return itself
}

// prefixOf returns the prefix from the first address to the last, if there is one.
func prefixOf(first, last netip.Addr) (netip.Prefix, bool) {
	for bits := range first.BitLen() + 1 {
		if p := netip.PrefixFrom(first, bits); p == p.Masked() && nft.LastAddr(p) == last {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// addrOf reads a value that is an address and nothing else.
func addrOf(v nft.Value) netip.Addr {
	a, _ := netip.AddrFromSlice([]byte(v))
	return a
}

// fieldReader reads the fields of a value one after the other.
type fieldReader struct {
	left   nft.Value
	family nft.Family
}

func (r *fieldReader) addr() netip.Addr { return addrOf(r.next(r.family.AddrLen())) }

func (r *fieldReader) protocol() service.Protocol { return service.Protocol(r.next(4)[0]) }

func (r *fieldReader) port() uint16 { return binary.BigEndian.Uint16([]byte(r.next(4))) }

func (r *fieldReader) next(n int) nft.Value {
	field := r.left[:n]
	r.left = r.left[n:]
	return field
}
