package ruleset

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/nft"
)

// clients stands for a Service port whose clients are remembered. The zero value
// stands for no port.
type clients struct {
	// name is part of the names of the port's maps and chains.
	name     string
	protocol service.Protocol
}

// maxClientsName is the longest name of clients, in bytes. With its prefix and suffix
// it fits the 255 bytes of a chain's name.
const maxClientsName = 160

// clientsOf names the clients of a Service port, for example "default/web/tcp/80".
// It cuts a name that is too long and appends a hash, with an underline before it,
// which no Service's name has.
func clientsOf(name service.Name, p *service.Port) clients {
	text := fmt.Sprintf("%s/%s/%d", name, p.Protocol, p.Port)
	if len(text) > maxClientsName {
		const digits = 32
		hash := sha256.Sum256([]byte(text))
		text = text[:maxClientsName-digits-1] + "_" + hex.EncodeToString(hash[:])[:digits]
	}
	return clients{text, p.Protocol}
}

// clientList is a set of the two lists of endpoints that a Service port can have.
// Each list has a map of its own for clients, since an endpoint of one list need not
// be in the other.
type clientList uint8

const (
	// clusterList is for clients that may go to any node.
	clusterList clientList = 1 << iota
	// localList is for clients that only get endpoints on this node.
	localList
)

// mapName names the dynamic map that remembers the clients of one list.
func (l clientList) mapName(of clients) string {
	if l == localList {
		return "local-affinity-" + of.name
	}
	return "affinity-" + of.name
}

// suffix is the end of the name of the chain that remembers clients for the lists.
func (l clientList) suffix() string {
	switch l {
	case clusterList:
		return ""
	case localList:
		return "-local"
	}
	return "-both"
}

// each yields the single lists of the set.
func (l clientList) each() iter.Seq[clientList] {
	return func(yield func(clientList) bool) {
		for _, one := range []clientList{clusterList, localList} {
			if l&one != 0 && !yield(one) {
				return
			}
		}
	}
}

// clientMap makes the map of a Service port's clients. It declares no size: the
// kernel sets one. A map with a declared size would take 2 MB from the start.
type clientMap string

func (name clientMap) make(*Config, pods) made {
	return made{sets: []*nft.Set{{Name: string(name), Key: client(), Data: target(), Dynamic: true}}}
}

// learningRules send translated connections to the chain that remembers them.
// That chain returns, since masquerade comes later.
//
// The rules know a node port by its number alone. So a connection to that port of
// another service's address may also be remembered for the node port, if it went to
// one of the node port's own endpoints. That does no harm.
//
// The kernel does not set the status of a translation for one that leads where the packet goes anyway
// (nf_nat_setup_info): to an endpoint on the host network whose address is the Service's external IP. Where a
// Service has such an endpoint, the rule does not ask for the status. Then the learning chain alone decides. It
// remembers nothing but endpoints of the address that the client asked for.
func learningRules(learning [2]learner) []nft.Rule {
	var rules []nft.Rule
	for _, l := range learning {
		if l.access == nil {
			continue
		}
		find := nft.VMap{Key: l.access.original, Map: l.access.learners}
		if l.identities {
			rules = append(rules, FindLearner.rule(find))
		} else {
			rules = append(rules, FindLearner.rule(nft.MatchDNATed{}, find))
		}
	}
	return rules
}

// learner is a way by which clients reach Services with session affinity; none by the zero value.
type learner struct {
	access *access
	// identities says that some endpoint is where the client goes anyway.
	identities bool
}

// isIdentity says whether the element is an endpoint that may be remembered for its own address and port, or for
// a node port of its own number: the endpoint may have the address of any node.
func (a *access) isIdentity(e *nft.Element, f nft.Family) bool {
	if e.Set != a.clusterRememberable && e.Set != a.localRememberable {
		return false
	}
	frontend, endpoint := e.Key[:a.key.Len(f)], e.Key[a.key.Len(f):]
	addr := f.AddrLen()
	return strings.HasSuffix(string(frontend), string(endpoint[addr:])) &&
		(a.key[0] != nft.Daddr || frontend[:addr] == endpoint[:addr])
}

// learnRules remember the endpoint of a connection, in the map of each list that has
// the endpoint now. The rules of the last program may have translated the connection;
// then neither list may have the endpoint.
func (a *access) learnRules(of clients, lists clientList, timeout time.Duration) []nft.Rule {
	var rules []nft.Rule
	for list := range lists.each() {
		rules = append(rules, Remember.rule(
			nft.InSet{Key: join(a.original, target()...), Set: a.rememberable(list)},
			nft.Update{Map: list.mapName(of), Key: nft.Fields{nft.OrigSaddr}, Data: target(), Timeout: timeout},
		))
	}
	return rules
}

// AffinityName identifies a dynamic map that remembers clients.
type AffinityName struct {
	Family nft.Family
	// Map is the set's name.
	Map string
	// Service is the one whose clients the map remembers.
	Service service.Name
}

// AffinityMap is one of the dynamic maps that remember clients.
type AffinityMap struct {
	Name  AffinityName
	Table nft.TableID
	Set   *nft.Set
	// Keep says whether an element may stay: whether the map's program may send the
	// client to that endpoint. Any other element is stale. It would send the client to
	// an endpoint that its Service no longer uses, for as long as the client comes
	// back. The first call goes through the Service's endpoints.
	Keep func(key, data nft.Value) bool
}

// AffinityMaps returns the program's maps that remember clients, of both tables. Its
// cost grows with the program.
func AffinityMaps(p *nft.Program) []AffinityMap {
	var all []AffinityMap
	for _, f := range nft.Families() {
		t := p.Table(f)
		for name, part := range t.Parts.All() {
			for _, list := range rememberedLists(t, part) {
				all = append(all, list.affinityMap(t, service.Name(name)))
			}
		}
	}
	return all
}

// AffinityOf returns the program's map of that name; ok is false if it has none.
func AffinityOf(p *nft.Program, name AffinityName) (m AffinityMap, ok bool) {
	t := p.Table(name.Family)
	for _, list := range rememberedLists(t, t.Parts.At(string(name.Service))) {
		if list.clients == name.Map {
			return list.affinityMap(t, name.Service), true
		}
	}
	return AffinityMap{}, false
}

// AffinityShrunk returns the maps of clients that may hold elements which are stale
// by the next program, in no order. These are the maps whose Service port has lost an
// endpoint, and the maps that the old program did not have: a map stays in the kernel
// for a while after its last program, with its clients. The cost grows with what has
// changed.
func AffinityShrunk(old, next *nft.Program) []AffinityName {
	var shrunk []AffinityName
	for _, f := range nft.Families() {
		for c := range treap.Diff(old.Table(f).Parts, next.Table(f).Parts) {
			before := map[string]rememberedList{}
			for _, list := range rememberedLists(old.Table(f), c.Old) {
				before[list.clients] = list
			}
			for _, list := range rememberedLists(next.Table(f), c.New) {
				if last, had := before[list.clients]; !had || !containsAll(list.endpoints(), last.endpoints()) {
					shrunk = append(shrunk, AffinityName{f, list.clients, service.Name(c.Key)})
				}
			}
		}
	}
	return shrunk
}

// rememberedList is a list of endpoints of a Service port whose clients are
// remembered.
type rememberedList struct {
	// clients is the map of its clients.
	clients string
	// frontends has the endpoints that may be remembered, once for each of the
	// Service port's frontends.
	frontends []rememberedFrontend
}

// rememberedFrontend is one frontend. The keys of its elements begin with at.
type rememberedFrontend struct {
	at       nft.Value
	elements []nft.Element
}

// rememberedLists finds the lists of a part by the rules that remember. Each frontend
// of the part leads to a chain. That chain names the set of endpoints that may be
// remembered, and the map of clients.
func rememberedLists(t *nft.Table, part *nft.Part) []rememberedList {
	var lists []rememberedList
	indices := map[string]int{}
	for _, a := range allAccess() {
		for _, at := range elementsOf(part, a.learners) {
			for from, to := range rememberingRules(t.Chains.At(at.Verdict.Chain)) {
				i, known := indices[to.Map]
				if !known {
					i, lists = len(lists), append(lists, rememberedList{clients: to.Map})
					indices[to.Map] = i
				}
				lists[i].frontends = append(lists[i].frontends, rememberedFrontend{at.Key, startingWith(elementsOf(part, from.Set),
					at.Key)})
			}
		}
	}
	return lists
}

// rememberingRules yields the set that each rule of a chain asks and the map in which
// it remembers. A chain of another version may have other rules; they are skipped.
func rememberingRules(chain *nft.Chain) iter.Seq2[nft.InSet, nft.Update] {
	return func(yield func(nft.InSet, nft.Update) bool) {
		if chain == nil {
			return
		}
		for _, r := range chain.Rules {
			if r = r.Body(); len(r) != 2 {
				continue
			}
			from, asks := r[0].(nft.InSet)
			to, remembers := r[1].(nft.Update)
			if asks && remembers && !yield(from, to) {
				return
			}
		}
	}
}

// endpoints returns the endpoints that may be remembered, sorted, each once.
func (l rememberedList) endpoints() []nft.Value {
	var all []nft.Value
	for _, f := range l.frontends {
		for _, e := range f.elements {
			all = append(all, e.Key[len(f.at):])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (l rememberedList) affinityMap(t *nft.Table, of service.Name) AffinityMap {
	rememberable := sync.OnceValue(func() map[nft.Value]bool {
		set := map[nft.Value]bool{}
		for _, e := range l.endpoints() {
			set[e] = true
		}
		return set
	})
	return AffinityMap{
		AffinityName{t.Family, l.clients, of}, t.ID(), t.Set(l.clients),
		func(_, data nft.Value) bool { return rememberable()[data] },
	}
}

// containsAll says whether the sorted list has all of the values.
func containsAll(list, values []nft.Value) bool {
	return !slices.ContainsFunc(values, func(v nft.Value) bool {
		_, found := slices.BinarySearch(list, v)
		return !found
	})
}

// startingWith returns the elements, sorted by key, whose keys begin with the prefix.
func startingWith(elements []nft.Element, prefix nft.Value) []nft.Element {
	first, _ := slices.BinarySearchFunc(elements, prefix, func(e nft.Element, prefix nft.Value) int {
		return cmp.Compare(e.Key, prefix)
	})
	rest := elements[first:]
	end := sort.Search(len(rest), func(i int) bool { return !strings.HasPrefix(string(rest[i].Key), string(prefix)) })
	return rest[:end]
}

// elementsOf returns the part's elements in one set. The part may be nil.
func elementsOf(p *nft.Part, set string) []nft.Element {
	if p == nil {
		return nil
	}
	first, found := slices.BinarySearchFunc(p.Elements, set, func(e nft.Element, set string) int {
		return cmp.Compare(e.Set, set)
	})
	if !found {
		return nil
	}
	rest := p.Elements[first:]
	end := sort.Search(len(rest), func(i int) bool { return rest[i].Set != set })
	return rest[:end]
}
