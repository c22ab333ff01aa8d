package scenario_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"nftproxy/test/scenario"
)

// row is one line of a table: a flow, or a remark about those below it.
type row struct {
	from, to, becomes, remark string
	heading                   string
}

// table shows the flows of a section and what happens to them.
func (s *shown) table(step *scenario.Step, text string) {
	var rows []row
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if comment, found := strings.CutPrefix(line, "#"); found {
			rows = append(rows, row{heading: sentence(strings.TrimSpace(comment))})
			continue
		}
		f, err := scenario.ParseFlow(line)
		if err != nil {
			panic(err) // Read has read it
		}
		rows = append(rows, row{
			from: origin(f), to: destination(f, step), becomes: becomes(f.Want, f.Protocol), remark: remark(f, step.KubeProxy),
		})
	}
	remarks := slices.ContainsFunc(rows, func(r row) bool { return r.remark != "" })
	if remarks {
		s.printf("\n| From | To | Result | Remarks |\n|---|---|---|---|\n")
	} else {
		s.printf("\n| From | To | Result |\n|---|---|---|\n")
	}
	for _, r := range rows {
		cells := []string{r.from, r.to, r.becomes}
		if r.heading != "" {
			cells = []string{"*" + r.heading + "*", "", ""}
		}
		if remarks {
			cells = append(cells, r.remark)
		}
		s.printf("| %s |\n", strings.Join(cells, " | "))
	}
}

func origin(f scenario.Flow) string {
	source := f.Source.Addr().String()
	if f.Source.Port() != 0 {
		source = f.Source.String()
	}
	return string(f.Origin) + " " + code(source)
}

// becomes says in words what happens to a flow.
func becomes(o scenario.Outcome, protocol string) string {
	switch o.Fate {
	case scenario.Refused:
		if protocol == "tcp" || protocol == scenario.HTTP {
			return "refused, by a TCP reset"
		}
		return "refused, by ICMP"
	case scenario.Dropped:
		return "dropped"
	case scenario.Untouched:
		return "not translated"
	case scenario.Echoed:
		return "answered by the node"
	case scenario.Answered:
		return fmt.Sprintf("HTTP %d: %s has %s on the node", o.Answer.Code, code(o.Answer.Service),
			counted(o.Answer.Weight, "ready endpoint"))
	}
	masqueraded := !slices.ContainsFunc(o.Targets, func(t scenario.Target) bool { return !t.Masqueraded })
	var targets []string
	for _, t := range o.Targets {
		target := code(t.Endpoint.String())
		if t.As.IsValid() {
			target += " (as " + code(t.As.String()) + ")"
		}
		if t.Masqueraded && !masqueraded {
			target += " (masqueraded)"
		}
		targets = append(targets, target)
	}
	text := "goes to " + alternatives(targets)
	if masqueraded {
		text += ", masqueraded"
	}
	switch {
	case o.AnyAddress:
		text += ", and stays there by every address"
	case o.Sticky:
		text += ", and stays there"
	}
	return text
}

func counted(n int, noun string) string {
	switch n {
	case 0:
		return "no " + noun
	case 1:
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// alternatives joins words as "a, b or c".
func alternatives(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// remark is why, and what kube-proxy does if that is something else.
func remark(f scenario.Flow, kubeProxy []scenario.Flow) string {
	var parts []string
	if f.Why != "" {
		parts = append(parts, f.Why)
	}
	for _, other := range kubeProxy {
		if other.Path() != f.Path() {
			continue
		}
		outcome := becomes(other.Want, f.Protocol)
		if other.Want.Chance {
			outcome += ", which differs from run to run"
		}
		parts = append(parts, fmt.Sprintf("kube-proxy: %s ([%s](../differences.md#%s))", outcome,
			strings.ToLower(other.Why[:1])+other.Why[1:], anchor(other.Why)))
	}
	return strings.ReplaceAll(strings.Join(parts, "; "), "|", `\|`)
}

// object has the fields of Services and EndpointSlices that give names to
// addresses.
type object struct {
	Spec struct {
		ClusterIP           string
		ClusterIPs          []string
		ExternalIPs         []string
		HealthCheckNodePort uint16
		Ports               []struct {
			NodePort uint16
			Protocol string
		}
	}
	Status struct {
		LoadBalancer struct{ Ingress []struct{ IP string } }
	}
}

// destination is the address, port and protocol that a flow is for, and the
// names of these.
func destination(f scenario.Flow, step *scenario.Step) string {
	text := code(f.Destination.String() + "/" + f.Protocol)
	if f.Protocol == scenario.ICMP {
		text = code(f.Destination.Addr().String() + "/" + f.Protocol)
	}
	var names []string
	for _, o := range step.Objects {
		if o.Kind != "Service" {
			continue
		}
		var parsed object
		if err := yaml.Unmarshal([]byte(o.YAML), &parsed); err != nil {
			panic(err) // Read has read it
		}
		if kind := parsed.nameOf(f, step.Addresses); kind != "" {
			name := o.Name
			if o.Namespace != "ns" {
				name = o.Namespace + "/" + name
			}
			names = append(names, kind+" of "+name)
		}
	}
	if len(names) > 0 {
		return text + ", " + strings.Join(names, ", ")
	}
	return text
}

// nameOf is what a flow's destination is to a Service.
func (o *object) nameOf(f scenario.Flow, node []netip.Addr) string {
	address := f.Destination.Addr()
	is := func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && a == address
	}
	if is(o.Spec.ClusterIP) || slices.ContainsFunc(o.Spec.ClusterIPs, is) {
		return "cluster IP"
	}
	if slices.ContainsFunc(o.Spec.ExternalIPs, is) {
		return "external IP"
	}
	for _, ingress := range o.Status.LoadBalancer.Ingress {
		if is(ingress.IP) {
			return "load balancer"
		}
	}
	if !address.IsLoopback() && !slices.Contains(node, address) || f.Protocol == scenario.ICMP {
		return ""
	}
	if f.Protocol == scenario.HTTP && o.Spec.HealthCheckNodePort == f.Destination.Port() {
		return "health check port"
	}
	for _, p := range o.Spec.Ports {
		protocol := strings.ToLower(p.Protocol)
		if protocol == "" {
			protocol = "tcp"
		}
		if p.NodePort == f.Destination.Port() && protocol == f.Protocol {
			return "node port"
		}
	}
	return ""
}
