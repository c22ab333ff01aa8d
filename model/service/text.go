package service

import (
	"fmt"
	"strings"
	"time"
)

// String returns the snapshot's text form, one fact a line, sorted; Parse reads it.
// Conflicts and restrictions follow from the services; they are comments. So are the
// counts of what was left out of a service.
func (s Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s\n", dash(s.Node.Name))
	if s.Node.Zone != "" {
		fmt.Fprintf(&b, "  zone %s\n", s.Node.Zone)
	}
	if s.Node.Eligible {
		fmt.Fprintf(&b, "  eligible\n")
	}
	if s.Node.AddressPending {
		fmt.Fprintf(&b, "  address-pending\n")
	}
	for _, a := range s.Node.Addresses {
		fmt.Fprintf(&b, "  address %s\n", a)
	}
	for _, a := range s.Node.HostAddresses {
		fmt.Fprintf(&b, "  host-address %s\n", a)
	}
	for _, a := range s.Node.SharedAddresses {
		fmt.Fprintf(&b, "  shared-address %s\n", a)
	}
	for _, r := range s.Node.PodCIDRs {
		fmt.Fprintf(&b, "  pod-cidr %s\n", r)
	}
	for text := range s.ServiceCIDRs.All() {
		fmt.Fprintf(&b, "service-cidr %s\n", text)
	}
	for name, svc := range s.Services.All() {
		svc.write(&b)
		if conflicts, ok := s.Conflicts.Get(name); ok {
			for c := range conflicts.All() {
				if c.Protected != "" {
					fmt.Fprintf(&b, "  # %s is protected: %s\n", c.Claim, c.Protected)
					continue
				}
				fmt.Fprintf(&b, "  # %s belongs to %s\n", c.Claim, dash(string(s.Owners.Of(c.Claim))))
			}
		}
		if restricted, ok := s.Restrictions.Get(name); ok {
			for r := range restricted.All() {
				fmt.Fprintf(&b, "  # %s is restricted by %s\n", r.Claim, r.By)
			}
		}
		for _, text := range s.Bounds(name) {
			fmt.Fprintf(&b, "  # %s\n", text)
		}
	}
	for _, other := range s.Others.All() {
		other.write(&b)
		fmt.Fprintf(&b, "  other-proxy\n")
	}
	return b.String()
}

// String returns the service's part of the snapshot's text form.
func (s *Service) String() string {
	var b strings.Builder
	s.write(&b)
	return b.String()
}

func (s *Service) write(b *strings.Builder) {
	fmt.Fprintf(b, "service %s created %s\n", s.Name, s.Created.UTC().Format(time.RFC3339Nano))
	if words := s.Retained.String(); words != "" {
		fmt.Fprintf(b, "  retained %s\n", words)
	}
	for _, a := range s.ClusterIPs {
		fmt.Fprintf(b, "  cluster-ip %s\n", a)
	}
	for _, a := range s.ExternalIPs {
		fmt.Fprintf(b, "  external-ip %s\n", a)
	}
	for _, a := range s.LoadBalancerIPs {
		fmt.Fprintf(b, "  load-balancer-ip %s\n", a)
	}
	s.Sources.write(b)
	if s.InternalPolicy != Cluster {
		fmt.Fprintf(b, "  internal-policy %s\n", s.InternalPolicy)
	}
	if s.ExternalPolicy != Cluster {
		fmt.Fprintf(b, "  external-policy %s\n", s.ExternalPolicy)
	}
	if s.AffinityTimeout != 0 {
		fmt.Fprintf(b, "  affinity %ds\n", int64(s.AffinityTimeout/time.Second))
	}
	if s.HealthCheckNodePort != 0 {
		fmt.Fprintf(b, "  health-check-node-port %d\n", s.HealthCheckNodePort)
	}
	for key, value := range s.Options.All() {
		fmt.Fprintf(b, "  option %s %s\n", key, value)
	}
	if s.SlotLimit != 0 {
		fmt.Fprintf(b, "  # slots: %d at most\n", s.SlotLimit)
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		fmt.Fprintf(b, "  port %s %s %s", dash(p.Name), p.Protocol, p.numberText())
		if p.NodePort != 0 {
			fmt.Fprintf(b, " node-port %d", p.NodePort)
		}
		b.WriteByte('\n')
		for e := range p.Endpoints.All() {
			fmt.Fprintf(b, "    endpoint %s %s%s\n", e.Addr, dash(e.Node), e.conditions())
		}
	}
}

// numberText is the port's number, or its ranges.
func (p *Port) numberText() string {
	if p.IsRange() {
		return "ranges=" + string(p.Ranges)
	}
	return p.Number()
}

// String returns "service" or "endpoints", and empty if nothing is retained.
func (r Retained) String() string {
	switch r {
	case RetainedService:
		return "service"
	case RetainedEndpoints:
		return "endpoints"
	}
	return ""
}

// write prints a line for each range. "none" stands for a list without ranges, which
// admits no source. Without any line every source is admitted.
func (s *Sources) write(b *strings.Builder) {
	if s != nil && len(s.ranges) == 0 {
		fmt.Fprintf(b, "  source-range none\n")
	}
	for _, r := range s.Ranges() {
		fmt.Fprintf(b, "  source-range %s\n", r)
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
	if e.Weight != 0 {
		fmt.Fprintf(&b, " weight=%d", e.Weight.Number())
	}
	if e.Share != WholeShare {
		fmt.Fprintf(&b, " share=%s", e.Share)
	}
	if e.Slots != (Slots{}) {
		fmt.Fprintf(&b, " slots=%d/%d", e.Slots.Cluster, e.Slots.Local)
	}
	return b.String()
}

// dash returns a dash for an empty name, which would not be seen between blanks.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
