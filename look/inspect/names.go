package inspect

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"nftproxy/model/ip"
	"nftproxy/model/printable"
	"nftproxy/model/service"
	"nftproxy/model/spelling"
)

// NewSelection makes a selection of Services by names as users give them: NAME, NAMESPACE/NAME, or either behind svc/
// or service/, as with kubectl. A name without namespace is selected in every namespace. An error names the name that
// cannot be used.
func NewSelection(namespace string, names []string) (Selection, error) {
	s := Selection{Namespace: namespace}
	if namespace != "" && !isLabel(namespace) {
		return s, fmt.Errorf("--namespace: %q is no name of a namespace", namespace)
	}
	for _, text := range names {
		name, err := parseName(namespace, text)
		if err != nil {
			return s, err
		}
		s.Services = append(s.Services, name)
	}
	return s, nil
}

// parseName reads the name of a Service. A namespace called svc has to be written as svc/svc/NAME, or apart.
func parseName(namespace, text string) (service.Name, error) {
	words := strings.Split(text, "/")
	if len(words) > 1 && slices.Contains([]string{"svc", "service", "services"}, words[0]) {
		words = words[1:]
	}
	name, space := words[len(words)-1], namespace
	if len(words) == 2 {
		space = words[0]
	}
	switch {
	case len(words) > 2 || !isLabel(name) || !isLabel(space) && len(words) == 2:
		return "", fmt.Errorf("%q is no name of a Service: want NAME, NAMESPACE/NAME or svc/NAME", text)
	case namespace != "" && space != namespace:
		return "", fmt.Errorf("%q is not in the namespace %q", text, namespace)
	}
	return service.NewName(space, name), nil
}

// isLabel says whether a Service or a namespace can have the name.
func isLabel(text string) bool { return len(validation.IsDNS1123Label(text)) == 0 }

// Has says whether the selection has a Service of that name. Its other fields do not count.
func (s *Selection) Has(name service.Name) bool {
	namespace, bare := name.Split()
	if s.Namespace != "" && s.Namespace != namespace {
		return false
	}
	return len(s.Services) == 0 || slices.ContainsFunc(s.Services, func(n service.Name) bool {
		return n == name || n == service.NewName("", bare)
	})
}

// UnknownError says that what a user has named does not exist.
type UnknownError struct{ text string }

func (e *UnknownError) Error() string { return e.text }

// Unknown returns an *UnknownError about the selected Services that are none of those, or nil. where is what has those.
func (s *Selection) Unknown(services iter.Seq[service.Name], where string) error {
	return unknown(s.missing(services), where)
}

func unknown(missing []string, where string) error {
	if len(missing) == 0 {
		return nil
	}
	return &UnknownError{printable.Text(fmt.Sprintf("not in %s: %s", where, strings.Join(missing, ", ")))}
}

// missing describes the selected Services that are none of those.
func (s *Selection) missing(services iter.Seq[service.Name]) (missing []string) {
	have := map[service.Name]bool{}
	var qualified, bare []string // what the names may be meant to be
	for name := range services {
		_, short := name.Split()
		have[name], have[service.NewName("", short)] = true, true
		if s.Namespace == "" || service.NewName(s.Namespace, short) == name {
			qualified, bare = append(qualified, string(name)), append(bare, short)
		}
	}
	for _, name := range s.Services {
		if have[name] {
			continue
		}
		text, others := string(name), qualified
		if namespace, short := name.Split(); namespace == "" {
			text, others = short, bare
		}
		said := fmt.Sprintf("service %q", text)
		if meant := spelling.Nearest(text, others); meant != "" {
			said += fmt.Sprintf(" (did you mean %s?)", meant)
		}
		missing = append(missing, said)
	}
	return missing
}

// Target is a destination by the name of a Service.
type Target struct {
	// service has one name.
	service Selection
	// port is the name or number of a port; empty for the only one. protocol is 0 for any.
	port     string
	protocol service.Protocol
}

// ParseTarget reads the name of a Service as NewSelection does, with :PORT or :PORT/PROTOCOL behind it or without.
func ParseTarget(namespace, text string) (Target, error) {
	var t Target
	name, port, given := strings.Cut(text, ":")
	port, protocol, named := strings.Cut(port, "/")
	var err error
	if t.service, err = NewSelection(namespace, []string{name}); err != nil {
		return t, err
	}
	if named {
		if t.protocol, err = service.ParseProtocol(protocol); err != nil {
			return t, fmt.Errorf("%q: protocol %q: want tcp, udp or sctp", text, protocol)
		}
	}
	if t.port = port; given && !isLabel(port) {
		return t, fmt.Errorf("%q: want the name or number of a port after the colon", text)
	}
	return t, nil
}

// InTables returns the cluster IP and the port that the tables have of the target.
func (t *Target) InTables(tables *Tables, like netip.Addr) (netip.AddrPort, service.Protocol, error) {
	return t.find(slices.Values(tables.Names()), "the tables", like,
		func(name service.Name) (*service.Service, []netip.Addr) {
			for _, s := range tables.services {
				if s.Service.Name == name {
					return s.Service, s.ClusterIPs()
				}
			}
			return nil, nil
		})
}

// InObjects returns the cluster IP and the port that the objects of a source have of the target.
func (t *Target) InObjects(objects *service.Snapshot, source string, like netip.Addr) (netip.AddrPort, service.Protocol,
	error) {
	return t.find(NamesOf(objects), source, like, func(name service.Name) (*service.Service, []netip.Addr) {
		s := objects.Services.At(name)
		return s, s.ClusterIPs
	})
}

// NamesOf yields the names of the Services of a snapshot.
func NamesOf(s *service.Snapshot) iter.Seq[service.Name] {
	return func(yield func(service.Name) bool) {
		for name := range s.Services.All() {
			if !yield(name) {
				return
			}
		}
	}
}

// find returns the address of the target that a client with an address can reach; any for an invalid one.
func (t *Target) find(services iter.Seq[service.Name], where string, like netip.Addr,
	get func(service.Name) (*service.Service, []netip.Addr)) (to netip.AddrPort, p service.Protocol, err error) {
	if err := t.service.Unknown(services, where); err != nil {
		return to, p, fmt.Errorf("%w; a Service without cluster IP is not there", err)
	}
	var found []string
	for name := range services {
		if t.service.Has(name) {
			found = append(found, string(name))
		}
	}
	slices.Sort(found)
	if len(found) > 1 {
		return to, p, fmt.Errorf("several Services have that name: %s: add -n NAMESPACE", fewNames(found))
	}
	s, addrs := get(service.Name(found[0]))
	port, err := t.portOf(s)
	if err != nil {
		return to, p, err
	}
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return !like.IsValid() || ip.Of(a) == ip.Of(like) })
	switch {
	case len(addrs) == 0:
		return to, p, fmt.Errorf("service %s has no cluster IP in %s", printable.Text(found[0]), where)
	case i < 0:
		return to, p, fmt.Errorf("service %s has no cluster IP of the client's family: %s", printable.Text(found[0]), addrs)
	}
	number := port.Port
	if n, err := strconv.ParseUint(t.port, 10, 16); err == nil && number == 0 {
		number = uint16(n) // one of the port's ranges
	}
	return netip.AddrPortFrom(addrs[i], number), port.Protocol, nil
}

// portOf returns the port of a Service that the target names. The error lists those that there are.
func (t *Target) portOf(s *service.Service) (*service.Port, error) {
	number, _ := strconv.ParseUint(t.port, 10, 16)
	var all []string
	var found []*service.Port
	for i := range s.Ports {
		p := &s.Ports[i]
		text := PortText(p.Name, p.Protocol.String(), p.Port)
		switch {
		case p.Ranges != "":
			text = string(p.Ranges) + "/" + p.Protocol.String()
		case p.Name != "" && p.Port != 0:
			text = p.Name + " " + text
		}
		all = append(all, text)
		numbered := number != 0 && (uint64(p.Port) == number || p.Ranges.Has(uint16(number)))
		named := p.Port != 0 && (t.port == "" || t.port == p.Name)
		if (numbered || named) && (t.protocol == 0 || t.protocol == p.Protocol) {
			found = append(found, p)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	slices.Sort(all)
	which := "name one"
	if t.port != "" {
		which = fmt.Sprintf("%d of them are %q", len(found), t.port)
	}
	return nil, fmt.Errorf("%s", printable.Text(fmt.Sprintf("service %s has the ports %s: %s, as in NAME:PORT or "+
		"NAME:PORT/PROTOCOL", s.Name, fewNames(all), which)))
}

// fewNames joins the first names of a list, and counts the others.
func fewNames(list []string) string {
	const most = 20
	if n := len(list) - most; n > 0 {
		list = append(slices.Clone(list[:most]), fmt.Sprintf("%d more", n))
	}
	return printable.Text(strings.Join(list, ", "))
}
