package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// serviceRow is a Service as some nodes hold it.
type serviceRow struct {
	Namespace  string   `json:"namespace"`
	Name       string   `json:"name"`
	ClusterIPs []string `json:"clusterIPs"`
	Ports      []string `json:"ports"`
	// Ready counts the ready endpoints of all ports by the EndpointSlices, Endpoints those to which the nodes send new
	// connections.
	Ready     int `json:"ready"`
	Endpoints int `json:"endpoints"`
	// Obstacles are in the words of nftproxy get services, or missing: the nodes lack the Service; or stale: the API
	// server lacks it. Details are the same as sentences.
	Obstacles []string `json:"obstacles"`
	Details   []string `json:"details"`
	// Nodes hold it so, of Asked that were asked and answered.
	Nodes []string `json:"nodes"`
	Asked int      `json:"asked"`
}

// heldService is how a node holds a Service: the number of endpoints, and the obstacles as words and as sentences, each
// in a line of its own.
type heldService struct {
	endpoints          int
	obstacles, details string
}

func (p *plugin) newGetServicesCommand() *cobra.Command {
	c := &getCommand{plugin: p}
	cmd := &cobra.Command{
		Use:     "services [NAME ...]",
		Aliases: []string{"service", "svc"},
		Short:   "Show Services as the nodes hold them",
		Long: `services lists the Services that nftproxy should serve by the API server, and asks each
node how it holds them. Nodes that hold a Service in the same way are one row, so a
Service with several rows differs between nodes:

  READY       the ready endpoints of all ports by the EndpointSlices
  ENDPOINTS   the endpoints to which these nodes send new connections
  OBSTACLES   what refuses or drops connections on these nodes, in the words of
              nftproxy get services; missing: the nodes do not have the Service; stale:
              they have it, and the API server does not
  NODES       how many of the asked nodes hold it so

-o wide adds the obstacles in words and the names of the nodes. Endpoints can differ by
right: topology hints and traffic policies choose by the node.`,
		Example: `  kubectl nftproxy get services -n shop
  kubectl nftproxy get svc cart -n shop -o wide
  kubectl nftproxy get services -A -l team=web -o yaml`,
		RunE: func(cmd *cobra.Command, args []string) error { return c.services(cmd.Context(), args) },
	}
	c.addFlags(cmd)
	return cmd
}

func (c *getCommand) services(ctx context.Context, names []string) error {
	if err := c.check(); err != nil {
		return err
	}
	o, err := c.read(ctx, names)
	if err != nil {
		return err
	}
	t, err := askAll(ctx, c, o, readServices, "services", names)
	if err != nil {
		return err
	}
	var rows []serviceRow
	for i := range o.services {
		rows = append(rows, serviceRows(&o.services[i], o, t)...)
	}
	if c.selector == "" {
		rows = append(rows, staleServices(o, t)...)
	}
	if err := printRows(c.Out, &c.output, serviceColumns(), rows, func(r *serviceRow) object {
		return object{kind: "ServedService", namespace: r.Namespace, name: r.Name, fields: r}
	}); err != nil {
		return err
	}
	return c.finish(t.noAnswers, len(rows))
}

// readServices reads what nftproxy get services prints.
func readServices(text []byte, add func(serviceKey, heldService)) error {
	type row struct {
		Namespace, Name string
		Endpoints       int
		Obstacles       []struct{ Kind, Text string }
	}
	rows, err := unmarshalList[row](text, "services")
	for _, r := range rows {
		var kinds, texts []string
		for _, o := range r.Obstacles {
			if !slices.Contains(kinds, o.Kind) {
				kinds = append(kinds, o.Kind)
			}
			texts = append(texts, o.Text)
		}
		add(serviceKey{r.Namespace, r.Name}, heldService{r.Endpoints, strings.Join(kinds, "\n"), strings.Join(texts, "\n")})
	}
	return err
}

// serviceRows has a row for each way in which nodes hold the Service.
func serviceRows(s *corev1.Service, o *objects, t *tally[serviceKey, heldService]) (rows []serviceRow) {
	key := serviceKey{s.Namespace, s.Name}
	for _, g := range t.of(key, o.nodes) {
		row := serviceRow{Namespace: s.Namespace, Name: s.Name, ClusterIPs: s.Spec.ClusterIPs, Ports: servicePorts(s),
			Ready: readyEndpoints(o.slices[key]), Obstacles: []string{"missing"}, Details: []string{}, Nodes: g.nodes,
			Asked: len(t.answered)}
		if g.held != nil {
			row.Endpoints, row.Obstacles, row.Details = g.held.endpoints, linesOf(g.held.obstacles), linesOf(g.held.details)
		}
		rows = append(rows, row)
	}
	return rows
}

// linesOf is the reverse of strings.Join.
func linesOf(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool { return c == '\n' })
}

// staleServices has a row for each Service that nodes hold and the API server does not have.
func staleServices(o *objects, t *tally[serviceKey, heldService]) (rows []serviceRow) {
	keys := slices.SortedFunc(maps.Keys(t.groups), func(a, b serviceKey) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	for _, key := range keys {
		for _, g := range t.of(key, o.nodes) {
			if g.held == nil || o.known[key] {
				continue
			}
			rows = append(rows, serviceRow{Namespace: key.namespace, Name: key.name, ClusterIPs: []string{}, Ports: []string{},
				Endpoints: g.held.endpoints, Obstacles: []string{"stale"}, Details: linesOf(g.held.details), Nodes: g.nodes,
				Asked: len(t.answered)})
		}
	}
	return rows
}

func servicePorts(s *corev1.Service) (list []string) {
	for _, p := range s.Spec.Ports {
		text := strconv.Itoa(int(p.Port))
		if p.NodePort != 0 {
			text += ":" + strconv.Itoa(int(p.NodePort))
		}
		list = append(list, text+"/"+strings.ToLower(string(p.Protocol)))
	}
	return list
}

// readyEndpoints counts the addresses that are ready, each once for each port.
func readyEndpoints(list []discoveryv1.EndpointSlice) int {
	type at struct {
		address, name string
		port          int32
		protocol      corev1.Protocol
	}
	seen := map[at]bool{}
	for i := range list {
		for _, e := range list[i].Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, address := range e.Addresses {
				for _, p := range list[i].Ports {
					seen[at{address, valueOf(p.Name), valueOf(p.Port), cmp.Or(valueOf(p.Protocol), corev1.ProtocolTCP)}] = true
				}
			}
		}
	}
	return len(seen)
}

func serviceColumns() []column[serviceRow] {
	return []column[serviceRow]{
		{header: "Namespace", text: func(r *serviceRow) string { return r.Namespace }},
		{header: "Name", text: func(r *serviceRow) string { return r.Name }},
		{header: "Cluster-IP", text: func(r *serviceRow) string { return few(r.ClusterIPs, ",") }},
		{header: "Port(s)", text: func(r *serviceRow) string { return few(r.Ports, ",") }},
		{header: "Ready", text: func(r *serviceRow) string { return strconv.Itoa(r.Ready) }},
		{header: "Endpoints", text: func(r *serviceRow) string { return strconv.Itoa(r.Endpoints) }},
		{header: "Obstacles", text: func(r *serviceRow) string { return strings.Join(r.Obstacles, ",") }},
		{header: "Nodes", text: func(r *serviceRow) string { return fmt.Sprintf("%d/%d", len(r.Nodes), r.Asked) }},
		{header: "Details", wide: true, text: func(r *serviceRow) string { return few(r.Details, "; ") }},
		{header: "Held-By", wide: true, text: func(r *serviceRow) string { return fewNodes(r.Nodes) }},
	}
}

// few joins the first texts of a list, and counts the others.
func few(list []string, separator string) string {
	const most = 4
	if len(list) > most {
		list = append(slices.Clone(list[:most]), fmt.Sprintf("+%d", len(list)-most))
	}
	return strings.Join(list, separator)
}
