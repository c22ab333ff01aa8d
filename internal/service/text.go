package service

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// String is the snapshot's text form, one fact a line, sorted; Parse reads it.
// Conflicts follow from the services and stand there as comments.
func (s Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s\n", dash(s.Node.Name))
	if s.Node.Zone != "" {
		fmt.Fprintf(&b, "  zone %s\n", s.Node.Zone)
	}
	for _, a := range s.Node.Addresses {
		fmt.Fprintf(&b, "  address %s\n", a)
	}
	for _, a := range s.Node.HostAddresses {
		fmt.Fprintf(&b, "  host-address %s\n", a)
	}
	for text := range s.ServiceCIDRs.All() {
		fmt.Fprintf(&b, "service-cidr %s\n", text)
	}
	for name, svc := range s.Services.All() {
		svc.write(&b)
		if lost, ok := s.Conflicts.Get(name); ok {
			for _, l := range lost.Lost {
				fmt.Fprintf(&b, "  # %s belongs to %s\n", l.Claim, l.Owner)
			}
		}
	}
	return b.String()
}

// String is the service's part of the snapshot's text form.
func (s *Service) String() string {
	var b strings.Builder
	s.write(&b)
	return b.String()
}

func (s *Service) write(b *strings.Builder) {
	fmt.Fprintf(b, "service %s created %s\n", s.Name, s.Created.UTC().Format(time.RFC3339Nano))
	for _, a := range s.ClusterIPs {
		fmt.Fprintf(b, "  cluster-ip %s\n", a)
	}
	for _, a := range s.ExternalIPs {
		fmt.Fprintf(b, "  external-ip %s\n", a)
	}
	if s.InternalPolicy != Cluster {
		fmt.Fprintf(b, "  internal-policy %s\n", s.InternalPolicy)
	}
	if s.ExternalPolicy != Cluster {
		fmt.Fprintf(b, "  external-policy %s\n", s.ExternalPolicy)
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		fmt.Fprintf(b, "  port %s %s %d", dash(p.Name), p.Protocol, p.Port)
		if p.NodePort != 0 {
			fmt.Fprintf(b, " node-port %d", p.NodePort)
		}
		b.WriteByte('\n')
		for _, e := range p.Endpoints {
			fmt.Fprintf(b, "    endpoint %s %s%s\n", e.Addr, dash(e.Node), e.conditions())
		}
	}
}

func (e Endpoint) conditions() string {
	var b strings.Builder
	for _, c := range []struct {
		set  bool
		name string
	}{{e.Ready, " ready"}, {e.Serving, " serving"}, {e.Terminating, " terminating"}} {
		if c.set {
			b.WriteString(c.name)
		}
	}
	if e.Nodes != "" {
		fmt.Fprintf(&b, " for-nodes=%s", e.Nodes)
	}
	if e.Zones != "" {
		fmt.Fprintf(&b, " for-zones=%s", e.Zones)
	}
	return b.String()
}

// dash stands for an empty name, which would be lost between blanks.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func undash(s string) string {
	if s == "-" {
		return ""
	}
	return s
}

// Parse reads what Snapshot.String writes. Lines that start with # and blank
// lines are skipped; indentation is for people. An error names the line.
func Parse(r io.Reader) (Snapshot, error) {
	var p parser
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := p.line(words[0], words[1:]); err != nil {
			return Snapshot{}, fmt.Errorf("parse snapshot: line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return Snapshot{}, fmt.Errorf("parse snapshot: %w", err)
	}
	b := NewBuilder(p.node)
	b.SetServiceCIDRs(p.cidrs)
	for _, s := range p.services {
		for i := range s.Ports {
			s.Ports[i].Endpoints = MergeEndpoints(s.Ports[i].Endpoints)
		}
		b.Set(s)
	}
	return b.Snapshot(), nil
}

type parser struct {
	node     Node
	cidrs    []netip.Prefix
	services []*Service
}

func (p *parser) line(keyword string, words []string) error {
	switch keyword {
	case "node":
		return p.nodeLine(words)
	case "zone":
		if len(words) != 1 {
			return fmt.Errorf("want: zone NAME")
		}
		p.node.Zone = words[0]
		return nil
	case "address":
		return parseAddr(words, &p.node.Addresses)
	case "host-address":
		return parseAddr(words, &p.node.HostAddresses)
	case "service":
		return p.serviceLine(words)
	case "service-cidr":
		return p.serviceCIDRLine(words)
	}
	if len(p.services) == 0 {
		return fmt.Errorf("%q before the first service", keyword)
	}
	s := p.services[len(p.services)-1]
	switch keyword {
	case "cluster-ip":
		return parseAddr(words, &s.ClusterIPs)
	case "external-ip":
		return parseAddr(words, &s.ExternalIPs)
	case "internal-policy":
		return parsePolicy(words, &s.InternalPolicy)
	case "external-policy":
		return parsePolicy(words, &s.ExternalPolicy)
	case "port":
		return s.portLine(words)
	case "endpoint":
		if len(s.Ports) == 0 {
			return fmt.Errorf("endpoint before the first port of %s", s.Name)
		}
		return s.Ports[len(s.Ports)-1].endpointLine(words)
	}
	return fmt.Errorf("unknown keyword %q", keyword)
}

func (p *parser) nodeLine(words []string) error {
	if len(words) != 1 {
		return fmt.Errorf("want: node NAME")
	}
	p.node.Name = undash(words[0])
	return nil
}

func (p *parser) serviceCIDRLine(words []string) error {
	if len(words) != 1 {
		return fmt.Errorf("want: service-cidr CIDR")
	}
	cidr, err := netip.ParsePrefix(words[0])
	if err == nil && cidr != cidr.Masked() {
		err = fmt.Errorf("%s has bits behind its length", cidr)
	}
	p.cidrs = append(p.cidrs, cidr)
	return err
}

func (p *parser) serviceLine(words []string) error {
	if len(words) != 3 || words[1] != "created" {
		return fmt.Errorf("want: service NAMESPACE/NAME created TIME")
	}
	created, err := time.Parse(time.RFC3339, words[2])
	if err != nil {
		return err
	}
	// The zone can take a time out of the years that the form has digits for.
	if created = created.UTC(); created.Year() < 0 || created.Year() > 9999 {
		return fmt.Errorf("time %q is not in the years 0 to 9999", words[2])
	}
	p.services = append(p.services, &Service{Name: Name(words[0]), Created: created})
	return nil
}

func parseAddr(words []string, to *[]netip.Addr) error {
	if len(words) != 1 {
		return fmt.Errorf("want one address, have %d words", len(words))
	}
	a, err := netip.ParseAddr(words[0])
	if err != nil {
		return err
	}
	*to = append(*to, a)
	return nil
}

func parsePolicy(words []string, to *TrafficPolicy) error {
	for _, p := range []TrafficPolicy{Cluster, Local} {
		if len(words) == 1 && words[0] == p.String() {
			*to = p
			return nil
		}
	}
	return fmt.Errorf("want: Cluster or Local")
}

func (s *Service) portLine(words []string) error {
	if len(words) != 3 && (len(words) != 5 || words[3] != "node-port") {
		return fmt.Errorf("want: port NAME PROTOCOL NUMBER [node-port NUMBER]")
	}
	port := Port{Name: undash(words[0])}
	var err error
	if port.Protocol, err = ParseProtocol(words[1]); err != nil {
		return err
	}
	if port.Port, err = parsePort(words[2]); err != nil {
		return err
	}
	if len(words) == 5 {
		if port.NodePort, err = parsePort(words[4]); err != nil {
			return err
		}
	}
	s.Ports = append(s.Ports, port)
	return nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		return 0, fmt.Errorf("port 0")
	}
	return uint16(n), err
}

func (p *Port) endpointLine(words []string) error {
	if len(words) < 2 {
		return fmt.Errorf("want: endpoint ADDRESS:PORT NODE [CONDITION...] [for-nodes=NAME,...] [for-zones=NAME,...]")
	}
	addr, err := netip.ParseAddrPort(words[0])
	if err != nil {
		return err
	}
	e := Endpoint{Addr: addr, Node: undash(words[1])}
	for _, c := range words[2:] {
		if list, ok := strings.CutPrefix(c, "for-nodes="); ok {
			e.Nodes = NewHints(strings.Split(list, ","))
			continue
		}
		if list, ok := strings.CutPrefix(c, "for-zones="); ok {
			e.Zones = NewHints(strings.Split(list, ","))
			continue
		}
		switch c {
		case "ready":
			e.Ready = true
		case "serving":
			e.Serving = true
		case "terminating":
			e.Terminating = true
		default:
			return fmt.Errorf("unknown condition %q", c)
		}
	}
	p.Endpoints = append(p.Endpoints, e)
	return nil
}
