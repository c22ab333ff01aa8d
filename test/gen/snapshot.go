package gen

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// ReadSnapshot reads what service.Snapshot.String writes. Lines that start with # and blank
// lines are skipped; indentation is for people. An error names the line.
func ReadSnapshot(r io.Reader) (service.Snapshot, error) {
	var p parser
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := p.line(words[0], words[1:]); err != nil {
			return service.Snapshot{}, fmt.Errorf("parse snapshot: line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return service.Snapshot{}, fmt.Errorf("parse snapshot: %w", err)
	}
	b := snapshots.NewBuilder(p.node)
	b.SetServiceCIDRs(p.cidrs)
	for _, s := range p.services {
		if s.otherProxy {
			b.SetOther(s.finished())
		} else {
			b.Set(s.finished())
		}
	}
	return b.Snapshot(), nil
}

type parser struct {
	node     service.Node
	cidrs    []netip.Prefix
	services []*parsedService
}

// parsedService is a service whose ports have no endpoints yet.
type parsedService struct {
	service.Service
	// endpoints are those of each port, in the order of the lines.
	endpoints [][]service.Endpoint
	// otherProxy says that another proxy serves it.
	otherProxy bool
}

func (s *parsedService) finished() *service.Service {
	for i := range s.Ports {
		s.Ports[i].Endpoints = service.MergeEndpoints(s.endpoints[i])
	}
	return &s.Service
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
	case "eligible":
		if len(words) != 0 {
			return fmt.Errorf("want: eligible")
		}
		p.node.Eligible = true
		return nil
	case "address-pending":
		if len(words) != 0 {
			return fmt.Errorf("want: address-pending")
		}
		p.node.AddressPending = true
		return nil
	case "address":
		return parseAddr(words, &p.node.Addresses)
	case "host-address":
		return parseAddr(words, &p.node.HostAddresses)
	case "shared-address":
		return parseAddr(words, &p.node.SharedAddresses)
	case "pod-cidr":
		return parseCIDR(words, &p.node.PodCIDRs)
	case "service":
		return p.serviceLine(words)
	case "service-cidr":
		return parseCIDR(words, &p.cidrs)
	}
	if len(p.services) == 0 {
		return fmt.Errorf("%q before the first service", keyword)
	}
	return p.services[len(p.services)-1].line(keyword, words)
}

// line reads a line about the service.
func (s *parsedService) line(keyword string, words []string) error {
	switch keyword {
	case "retained":
		return s.retainedLine(words)
	case "other-proxy":
		s.otherProxy = true
		return nil
	case "cluster-ip":
		return parseAddr(words, &s.ClusterIPs)
	case "external-ip":
		return parseAddr(words, &s.ExternalIPs)
	case "load-balancer-ip":
		return parseAddr(words, &s.LoadBalancerIPs)
	case "source-range":
		return s.sourceRangeLine(words)
	case "internal-policy":
		return parsePolicy(words, &s.InternalPolicy)
	case "external-policy":
		return parsePolicy(words, &s.ExternalPolicy)
	case "affinity":
		return s.affinityLine(words)
	case "health-check-node-port":
		return s.healthCheckNodePortLine(words)
	case "option":
		if len(words) != 2 {
			return fmt.Errorf("want: option KEY VALUE")
		}
		return s.Options.Set(words[0], words[1])
	case "port":
		return s.portLine(words)
	case "endpoint":
		if len(s.Ports) == 0 {
			return fmt.Errorf("endpoint before the first port of %s", s.Name)
		}
		return s.endpointLine(words)
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

func (p *parser) serviceLine(words []string) error {
	if len(words) != 3 || words[1] != "created" {
		return fmt.Errorf("want: service NAMESPACE/NAME created TIME")
	}
	created, err := time.Parse(time.RFC3339, words[2])
	if err != nil {
		return err
	}
	// In UTC the year may be outside of those that the form has four digits for.
	if created = created.UTC(); created.Year() < 0 || created.Year() > 9999 {
		return fmt.Errorf("time %q is not in the years 0 to 9999", words[2])
	}
	p.services = append(p.services, &parsedService{Service: service.Service{Name: service.Name(words[0]),
		Created: created}})
	return nil
}

func (s *parsedService) retainedLine(words []string) error {
	for _, r := range []service.Retained{service.RetainedEndpoints, service.RetainedService} {
		if len(words) == 1 && words[0] == r.String() {
			s.Retained = r
			return nil
		}
	}
	return fmt.Errorf("want: retained service|endpoints")
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

func parseCIDR(words []string, to *[]netip.Prefix) error {
	if len(words) != 1 {
		return fmt.Errorf("want one CIDR, have %d words", len(words))
	}
	cidr, err := netip.ParsePrefix(words[0])
	if err == nil && cidr != cidr.Masked() {
		err = fmt.Errorf("%s has bits behind its length", cidr)
	}
	*to = append(*to, cidr)
	return err
}

func (s *parsedService) sourceRangeLine(words []string) error {
	ranges := slices.Clone(s.Sources.Ranges())
	if len(words) != 1 || words[0] != "none" {
		if err := parseCIDR(words, &ranges); err != nil {
			return err
		}
	}
	s.Sources = service.NewSources(ranges)
	return nil
}

func (s *parsedService) affinityLine(words []string) error {
	if len(words) != 1 {
		return fmt.Errorf("want: affinity TIMEOUT")
	}
	timeout, err := time.ParseDuration(words[0])
	if err == nil && (timeout <= 0 || timeout%time.Second != 0) {
		err = fmt.Errorf("time-out %s is not a positive number of whole seconds", words[0])
	}
	s.AffinityTimeout = timeout
	return err
}

func (s *parsedService) healthCheckNodePortLine(words []string) error {
	if len(words) != 1 {
		return fmt.Errorf("want: health-check-node-port NUMBER")
	}
	var err error
	s.HealthCheckNodePort, err = parsePort(words[0])
	return err
}

func parsePolicy(words []string, to *service.TrafficPolicy) error {
	for _, p := range []service.TrafficPolicy{service.Cluster, service.Local} {
		if len(words) == 1 && words[0] == p.String() {
			*to = p
			return nil
		}
	}
	return fmt.Errorf("want: Cluster or Local")
}

func (s *parsedService) portLine(words []string) error {
	if len(words) != 3 && (len(words) != 5 || words[3] != "node-port") {
		return fmt.Errorf("want: port NAME PROTOCOL NUMBER [node-port NUMBER]")
	}
	port := service.Port{Name: undash(words[0])}
	var err error
	if port.Protocol, err = service.ParseProtocol(words[1]); err != nil {
		return err
	}
	if text, isRange := strings.CutPrefix(words[2], "ranges="); isRange {
		port.Ranges = service.NewPortRanges(slices.Collect(service.PortRanges(text).All()))
		if string(port.Ranges) != text {
			return fmt.Errorf("%q is no list of ranges: %q is", text, port.Ranges)
		}
	} else if port.Port, err = parsePort(words[2]); err != nil {
		return err
	}
	if len(words) == 5 {
		if port.NodePort, err = parsePort(words[4]); err != nil {
			return err
		}
	}
	s.Ports, s.endpoints = append(s.Ports, port), append(s.endpoints, nil)
	return nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		return 0, fmt.Errorf("port 0")
	}
	return uint16(n), err
}

func (s *parsedService) endpointLine(words []string) error {
	if len(words) < 2 {
		return fmt.Errorf("want: endpoint ADDRESS:PORT NODE [CONDITION...] [for-nodes=NAME,...] [for-zones=NAME,...] " +
			"[weight=NUMBER]")
	}
	addr, err := netip.ParseAddrPort(words[0])
	if err != nil {
		return err
	}
	e := service.Endpoint{Addr: addr, Node: undash(words[1])}
	for _, c := range words[2:] {
		if list, ok := strings.CutPrefix(c, "for-nodes="); ok {
			e.Nodes = service.NewHints(strings.Split(list, ","))
			continue
		}
		if list, ok := strings.CutPrefix(c, "for-zones="); ok {
			e.Zones = service.NewHints(strings.Split(list, ","))
			continue
		}
		if number, ok := strings.CutPrefix(c, "weight="); ok {
			n, err := strconv.ParseUint(number, 10, 16)
			if err != nil {
				return err
			}
			e.Weight = service.NewWeight(uint16(n))
			continue
		}
		if text, ok := strings.CutPrefix(c, "share="); ok {
			if e.Share, ok = service.ParseShare(text); !ok {
				return fmt.Errorf("share %q: want 0/4 to 3/4", text)
			}
			continue
		}
		if text, ok := strings.CutPrefix(c, "slots="); ok {
			if _, err := fmt.Sscanf(text, "%d/%d", &e.Slots.Cluster, &e.Slots.Local); err != nil {
				return fmt.Errorf("slots %q: want two numbers, as in 16/0", text)
			}
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
	last := &s.endpoints[len(s.endpoints)-1]
	*last = append(*last, e)
	return nil
}

func undash(s string) string {
	if s == "-" {
		return ""
	}
	return s
}
