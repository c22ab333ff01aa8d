package statuspage

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"nftproxy/look/explain"
	"nftproxy/model/service"
)

// The bounds on a request.
const (
	// maxQuery is the length of a search, in bytes, and maxWords the number of its words.
	// A Service that matches is looked through once for each word.
	maxQuery = 300
	maxWords = 8
)

// request is a request for a page, as its URL has it.
type request struct {
	// service is the Service to show; empty for the overview. port is the number of its
	// port to show alone, from 1 on in the order of the object; 0 for all ports.
	service service.Name
	port    int
	// search is the search as it was typed, words what it looks for.
	search string
	words  []word
	// state is the word for the worst obstacle of the Services to list; empty for all.
	state string
	// page is the number of the page in the list, from 1 on.
	page int
	// draining asks for the endpoints that drain.
	draining bool
	// explain is a destination to explain, the zero one for none, and from the client.
	explain explain.Destination
	from    explain.Origin
}

// parseRequest reads the query of a URL.
func parseRequest(q url.Values) (*request, error) {
	r := &request{service: service.Name(q.Get("service")), search: strings.TrimSpace(q.Get("q")), state: q.Get("state"),
		page: 1}
	if err := r.parseExplain(q.Get("explain"), strings.TrimSpace(q.Get("from"))); err != nil {
		return nil, err
	}
	if len(r.search) > maxQuery {
		return nil, fmt.Errorf("the search has %d bytes, more than %d", len(r.search), maxQuery)
	}
	fields := strings.Fields(strings.ToLower(r.search))
	if len(fields) > maxWords {
		return nil, fmt.Errorf("the search has %d words, more than %d", len(fields), maxWords)
	}
	for _, f := range fields {
		r.words = append(r.words, parseWord(f))
	}
	switch view := q.Get("view"); view {
	case "":
	case "draining":
		r.draining = true
	default:
		return nil, fmt.Errorf("there is no view %q", cut(view, maxQuery))
	}
	if _, ok := kindOf(r.state); !ok && r.state != "" {
		return nil, fmt.Errorf("there is no state %q", cut(r.state, maxQuery))
	}
	for _, number := range []struct {
		name string
		into *int
	}{{"page", &r.page}, {"port", &r.port}} {
		text := q.Get(number.name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%s %q is not a number from 1 on", number.name, cut(text, maxQuery))
		}
		*number.into = int(n)
	}
	if r.port > 0 && r.service == "" {
		return nil, errors.New("a port needs a Service")
	}
	return r, nil
}

// parseExplain reads the packet to explain. The errors do not repeat the texts: a link of a stranger
// has them, and the page shows commands for the node's shell.
func (r *request) parseExplain(destination, from string) error {
	if destination == "" {
		return nil
	}
	var err error
	if r.explain, err = explain.ParseDestination(destination); err != nil {
		return errors.New("the destination to explain is not ADDR:PORT, ADDR:PORT/PROTOCOL or ADDR/icmp, such as " +
			"10.96.0.10:53/udp")
	}
	if r.from, err = explain.ParseOrigin(from); err != nil {
		return fmt.Errorf("the client is neither an address, nor an address and an interface as ADDR@INTERFACE, nor %q",
			explain.FromNode)
	}
	return nil
}

func (r request) url() string {
	q := url.Values{}
	set := func(name, value string, is bool) {
		if is {
			q.Set(name, value)
		}
	}
	set("view", "draining", r.draining)
	set("explain", r.explain.String(), r.explain != explain.Destination{})
	set("from", r.from.String(), r.from != explain.Origin{})
	set("service", string(r.service), r.service != "")
	set("port", strconv.Itoa(r.port), r.port > 0)
	set("q", r.search, r.search != "")
	set("state", r.state, r.state != "")
	set("page", strconv.Itoa(r.page), r.page > 1)
	return "?" + q.Encode()
}

func serviceURL(name service.Name) string { return request{service: name}.url() }

// word is a word of a search. A Service matches if it has any of what the word can mean.
type word struct {
	// name is a part of the Service's name.
	name string
	// prefix is the range of an address, of the Service or of an endpoint; one address is
	// a range too. It is not valid if the word is none.
	prefix netip.Prefix
	// port is a port, of the Service, of the node or of an endpoint; 0 for none. With a
	// prefix, both have to stand together.
	port uint16
	// protocol narrows the ports; 0 for all.
	protocol service.Protocol
	// node says that the range has an address of the node, which serves node ports.
	node bool
}

// parseWord reads part of a name, an address, a range of addresses, a port, or an address
// with a port; a protocol may follow a port, as in 53/udp.
func parseWord(s string) word {
	w := word{name: s}
	if p, err := netip.ParsePrefix(s); err == nil {
		w.prefix = p.Masked()
		return w
	}
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		w.prefix = exactly(a)
		return w
	}
	rest := s
	if before, after, found := strings.Cut(s, "/"); found {
		protocol, err := service.ParseProtocol(after)
		if err != nil {
			return w
		}
		rest, w.protocol = before, protocol
	}
	if ap, err := netip.ParseAddrPort(rest); err == nil && ap.Port() != 0 {
		w.prefix, w.port = exactly(ap.Addr()), ap.Port()
		return w
	}
	if n, err := strconv.ParseUint(strings.TrimPrefix(rest, ":"), 10, 16); err == nil {
		w.port = uint16(n)
	}
	return w
}

func exactly(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// findNode notes which words have an address of the node.
func (r *request) findNode(n *service.Node) {
	for i := range r.words {
		w := &r.words[i]
		w.node = w.prefix.IsValid() && w.port != 0 && (slices.ContainsFunc(n.Addresses, w.prefix.Contains) ||
			slices.ContainsFunc(n.HostAddresses, w.prefix.Contains))
	}
}

func (r *request) matches(s *service.Service) bool {
	return !slices.ContainsFunc(r.words, func(w word) bool { return !w.matches(s) })
}

func (w *word) matches(s *service.Service) bool {
	if strings.Contains(string(s.Name), w.name) {
		return true
	}
	if !w.prefix.IsValid() && w.port == 0 {
		return false
	}
	at := w.matchesAddress(s)
	if at && w.port == 0 {
		return true
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		if w.protocol != 0 && w.protocol != p.Protocol {
			continue
		}
		if at && (w.port == p.Port || p.Ranges.Has(w.port)) || w.node && w.port == p.NodePort || !w.prefix.IsValid() &&
			(w.port == p.Port || w.port == p.NodePort) {
			return true
		}
		if w.matchesEndpoint(p) {
			return true
		}
	}
	return false
}

func (w *word) matchesAddress(s *service.Service) bool {
	if !w.prefix.IsValid() {
		return false
	}
	return slices.ContainsFunc(s.ClusterIPs, w.prefix.Contains) || slices.ContainsFunc(s.ExternalIPs, w.prefix.Contains) ||
		slices.ContainsFunc(s.LoadBalancerIPs, w.prefix.Contains)
}

func (w *word) matchesEndpoint(p *service.Port) bool {
	for chunk := range p.Endpoints.Chunks() {
		for i := range chunk {
			a := chunk[i].Addr
			if (w.port == 0 || w.port == a.Port()) && (!w.prefix.IsValid() || w.prefix.Contains(a.Addr())) {
				return true
			}
		}
	}
	return false
}
