package watch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/sorted"
	"nftproxy/model/spelling"
)

// sliceObject is an EndpointSlice as the index keeps it.
type sliceObject struct {
	identity
	// owner is the Service that it belongs to, empty if it belongs to none.
	owner service.Name
	// ports are sorted by their keys and numbers. Two with the same key give two endpoints for each address.
	ports []slicePort
	// endpoints are those of the first port. The others have the same ones with other numbers.
	endpoints service.Endpoints
	// names keeps the shared copies of nodes' names and of lists of hints alive: all
	// endpoints with an equal name, in this slice and in others, use the same copy.
	names []unique.Handle[string]
	// trigger is when the cause of the last change happened, as the slice says; zero if
	// it does not say so.
	trigger time.Time
	family  ip.Family
	// headless is not nil for a slice of a headless Service, by its label.
	headless *headlessSlice
}

// slicePort is one port of a slice.
type slicePort struct {
	key    service.SlicePort
	number uint16
	// made is the list of the key's endpoints that an earlier version of the slice made, or this one if it is fresh. It
	// is made when somebody asks for it: versions that follow each other quickly, and ports that no Service has, cost no
	// list. Snapshots share it.
	made  service.Endpoints
	fresh bool
}

func (p slicePort) compare(o slicePort) int {
	return cmp.Or(p.key.Compare(o.key), cmp.Compare(p.number, o.number))
}

// port returns the endpoints of a port. The slice may be nil.
func (s *sliceObject) port(k service.SlicePort) service.Endpoints {
	if s == nil {
		return service.Endpoints{}
	}
	i, found := s.find(k)
	if !found {
		return service.Endpoints{}
	}
	p := &s.ports[i]
	if !p.fresh {
		p.made, p.fresh = s.list(i, p.made), true
	}
	return p.made
}

// list makes the endpoints of the port with this index, the first one of its key. It takes what is equal from before.
func (s *sliceObject) list(i int, before service.Endpoints) service.Endpoints {
	same := s.ports[i:]
	for n, p := range same {
		if p.key != same[0].key {
			same = same[:n]
			break
		}
	}
	if len(same) == 1 && same[0].number == s.ports[0].number {
		return s.endpoints
	}
	all := make([]service.Endpoint, 0, len(same)*s.endpoints.Len())
	for _, p := range same {
		for e := range s.endpoints.All() {
			e.Addr = netip.AddrPortFrom(e.Addr.Addr(), p.number)
			all = append(all, e)
		}
	}
	if len(same) > 1 {
		return sorted.Reuse(before, service.MergeEndpoints(all))
	}
	return sorted.Reuse(before, sorted.Of(all))
}

// find returns the index of the first port with a key. A slice may have 20,000 ports.
func (s *sliceObject) find(k service.SlicePort) (int, bool) {
	return slices.BinarySearchFunc(s.ports, k, func(p slicePort, k service.SlicePort) int { return p.key.Compare(k) })
}

// follow takes what is equal from the last version of the slice, so that memory holds it once and comparing the two is
// cheap. It returns whether the versions have the same owner, ports and endpoints.
func (s *sliceObject) follow(old *sliceObject) bool {
	s.endpoints = sorted.Reuse(old.endpoints, s.endpoints)
	equal := s.owner == old.owner && s.endpoints.Same(old.endpoints) && slices.EqualFunc(s.ports, old.ports,
		func(a, b slicePort) bool { return a.compare(b) == 0 })
	for i := range s.ports {
		p := &s.ports[i]
		if at, found := old.find(p.key); found {
			p.made, p.fresh = old.ports[at].made, equal && old.ports[at].fresh
		}
	}
	return equal
}

// intern returns one shared copy for all equal strings.
func intern(s string) string { return unique.Make(s).Value() }

// convertSlice turns an EndpointSlice into the endpoints of each of its ports.
func convertSlice(s *discoveryv1.EndpointSlice) *sliceObject {
	object := &sliceObject{identity: identify(&s.ObjectMeta)}
	owner := s.Labels[discoveryv1.LabelServiceName]
	p := problemsOf("EndpointSlice", &s.ObjectMeta)
	if _, headless := s.Labels[labelHeadless]; headless {
		if owner != "" {
			object.headless = &headlessSlice{p.object, service.NewName(s.Namespace, owner)}
		}
		return object
	}
	defer func() { object.problems = p.all() }()
	if owner == "" {
		hint := ""
		if key := meantLabel(s.Labels); key != "" {
			hint = "; is it meant by " + key + "?"
		}
		p.add("metadata.labels", &SliceIgnoredError{fmt.Errorf("no %s: it belongs to no Service%s",
			discoveryv1.LabelServiceName, hint)})
		return object
	}
	object.owner = service.NewName(s.Namespace, owner)
	misspelt(&s.ObjectMeta, p)
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	default:
		p.add("addressType", &SliceIgnoredError{&ValueError{string(s.AddressType), "not IPv4 or IPv6: a packet cannot be " +
			"sent to its endpoints"}})
		return object
	}
	object.trigger, object.family = triggerTime(s, p), ip.V4
	if s.AddressType == discoveryv1.AddressTypeIPv6 {
		object.family = ip.V6
	}
	if len(s.Ports) == 0 {
		// The Service's targetPort is a name that none of these pods has.
		return object
	}
	endpoints := object.sliceEndpoints(s, p)
	if weight := sliceWeight(s, p); weight != 0 {
		for i := range endpoints {
			endpoints[i].Weight = weight
		}
	}
	if object.ports = slicePorts(s.Ports, len(endpoints), p); len(object.ports) == 0 {
		return object
	}
	for i := range endpoints {
		endpoints[i].Addr = netip.AddrPortFrom(endpoints[i].Addr.Addr(), object.ports[0].number)
	}
	object.endpoints = service.MergeEndpoints(endpoints)
	return object
}

// triggerTime reads the annotation in which controllers say when the pod or the Service
// changed that made them change the slice.
func triggerTime(s *discoveryv1.EndpointSlice, p *problemList) time.Time {
	text, ok := s.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if !ok {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		p.addValue("metadata.annotations["+corev1.EndpointsLastChangeTriggerTime+"]", beginning(text),
			"not a time such as 2006-01-02T15:04:05.999Z: the delay of this change is not measured")
		return time.Time{}
	}
	return t
}

// misspelt finds annotations that are none of a slice, and that were meant to be.
func misspelt(m *metav1.ObjectMeta, p *problemList) {
	weights := weightKeys()
	if text, is := m.Labels[weights[0]]; is {
		p.addValue("metadata.labels["+weights[0]+"]", text, "a label has no effect; did you mean the annotation "+weights[0]+
			"?")
	}
	if len(m.Annotations) == 0 {
		return
	}
	own := strings.TrimPrefix(weights[0], service.OptionPrefix)
	for _, key := range slices.Sorted(maps.Keys(m.Annotations)) {
		reason := ""
		switch name, ours := strings.CutPrefix(key, service.OptionPrefix); {
		case ours && name != own:
			reason = "unknown key; " + spelling.DidYouMean(key, weights[:1]) + "an EndpointSlice has " + weights[0]
		case !ours && service.MeantBy(key, []string{own}) != "":
			reason = "the key has no effect; did you mean " + weights[0] + "?"
		case key != weights[1] && spelling.Nearest(key, weights[1:]) != "":
			reason = "the key has no effect; did you mean " + weights[1] + "?"
		default:
			continue
		}
		p.addValue("metadata.annotations["+key+"]", beginning(m.Annotations[key]), reason)
	}
}

// weightKeys are the annotations that say the weight of a slice's endpoints. The first that can be used counts. The
// second is Cilium's (1.20), which the operator of its Gateway API writes, too.
func weightKeys() [2]string { return [...]string{"nftproxy.io/weight", "service.cilium.io/weight"} }

// sliceWeight returns the weight of each endpoint of the slice.
func sliceWeight(s *discoveryv1.EndpointSlice, p *problemList) (weight service.Weight) {
	var bad []string
	for _, key := range weightKeys() {
		text, ok := s.Annotations[key]
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 16)
		if err == nil {
			weight = service.NewWeight(uint16(n))
			break
		}
		bad = append(bad, key)
	}
	for _, key := range bad {
		p.addValue("metadata.annotations["+key+"]", beginning(s.Annotations[key]),
			fmt.Sprintf("not a whole number from 0 to 65535: the endpoints have the weight %d", weight.Number()))
	}
	return weight
}

// sliceEndpoints returns the endpoints, without ports. Only the first address of an
// endpoint counts (API documentation of Endpoint.addresses).
func (object *sliceObject) sliceEndpoints(s *discoveryv1.EndpointSlice, p *problemList) []service.Endpoint {
	list := make([]service.Endpoint, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if len(e.Addresses) == 0 {
			p.add(item("endpoints", i)+".addresses", errors.New("none"))
			continue
		}
		addr, err := parseAddrFor(asEndpoint, e.Addresses[0])
		if err == nil && string(family(addr)) != string(s.AddressType) {
			err = &ValueError{Value: e.Addresses[0], Reason: "addressType says " + string(s.AddressType)}
		}
		if err != nil {
			p.add(item("endpoints", i)+".addresses[0]", err)
			continue
		}
		endpoint := service.Endpoint{
			Addr:        netip.AddrPortFrom(addr, 0),
			Ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
			Serving:     e.Conditions.Serving == nil || *e.Conditions.Serving,
			Terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
		}
		if e.Hints != nil {
			endpoint.Nodes = hints(object, i, e.Hints.ForNodes, func(h discoveryv1.ForNode) string {
				return h.Name
			}, ".hints.forNodes", p)
			endpoint.Zones = hints(object, i, e.Hints.ForZones, func(h discoveryv1.ForZone) string {
				return h.Name
			}, ".hints.forZones", p)
		}
		if e.NodeName != nil {
			if err := checkName(*e.NodeName); err != nil {
				p.add(item("endpoints", i)+".nodeName", err)
			} else {
				endpoint.Node = object.share(*e.NodeName)
			}
		}
		list = append(list, endpoint)
	}
	return list
}

// recentNames is how many of a slice's names share looks through. A name that comes again later is kept twice, which
// costs 8 bytes. A map of them took more time than everything else about an endpoint
// (go test ./watch -run '^$' -bench DecodeList).
const recentNames = 16

// share returns one copy of all equal names of endpoints, in all slices.
func (object *sliceObject) share(name string) string {
	shared := unique.Make(name)
	if recent := object.names[max(0, len(object.names)-recentNames):]; !slices.Contains(recent, shared) {
		object.names = append(object.names, shared)
	}
	return shared.Value()
}

// hints returns the names in one kind of hint of an endpoint, which is given by its number. It reports a bad name, and
// the others count.
func hints[T any](object *sliceObject, endpoint int, list []T, name func(T) string, subfield string,
	p *problemList) service.Hints {
	if len(list) == 0 {
		return ""
	}
	var good []string
	for i, h := range list {
		if err := checkName(name(h)); err != nil {
			p.add(item(item("endpoints", endpoint)+subfield, i)+".name", err)
			continue
		}
		good = append(good, name(h))
	}
	return service.Hints(object.share(string(service.NewHints(good))))
}

// maxSliceEndpoints bounds the endpoints of all ports of a slice together: no Service gets more than so many
// elements. The API server takes slices of 20,000 ports and 1,000 endpoints, which are an object of 0.4 MB
// and would take 1.8 GB.
const maxSliceEndpoints = service.DefaultMaxElements

// slicePorts returns the ports, as far as maxSliceEndpoints allows with so many endpoints of each.
func slicePorts(ports []discoveryv1.EndpointPort, endpoints int, p *problemList) []slicePort {
	list := make([]slicePort, 0, len(ports))
	leftOut := 0
	for i := range ports {
		key, number, ok := endpointPort(&ports[i], i, p)
		switch {
		case !ok:
		case (len(list)+1)*endpoints > maxSliceEndpoints:
			leftOut++
		default:
			list = append(list, slicePort{key: key, number: number})
		}
	}
	if leftOut > 0 {
		p.add("ports", fmt.Errorf("%d of %d are left out: each has %d endpoints, and the slice would take more than %d "+
			"elements", leftOut, len(ports), endpoints, maxSliceEndpoints))
	}
	slices.SortFunc(list, slicePort.compare)
	return slices.CompactFunc(list, func(a, b slicePort) bool { return a.compare(b) == 0 })
}

// endpointPort reads the i-th port. It returns false for a port that cannot be used. A
// missing name is the empty one, the API's default.
func endpointPort(port *discoveryv1.EndpointPort, i int, p *problemList) (service.SlicePort, uint16, bool) {
	var key service.SlicePort
	if port.Name != nil {
		if err := checkName(*port.Name); err != nil {
			p.add(item("ports", i)+".name", err)
			return key, 0, false
		}
		key.Name = intern(*port.Name)
	}
	var err error
	if key.Protocol, err = parseProtocol(port.Protocol); err != nil {
		p.add(item("ports", i)+".protocol", err)
		return key, 0, false
	}
	if port.Port == nil {
		p.add(item("ports", i)+".port", errors.New("none: a service proxy needs the number"))
		return key, 0, false
	}
	number, err := parsePort(*port.Port)
	if err != nil {
		p.add(item("ports", i)+".port", err)
		return key, 0, false
	}
	return key, number, true
}
