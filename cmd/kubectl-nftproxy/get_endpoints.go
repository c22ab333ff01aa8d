package main

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpointRow is an endpoint of a Service as some nodes hold it.
type endpointRow struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      string `json:"port"`
	Endpoint  string `json:"endpoint"`
	// Target and Node are by the EndpointSlices, and so are the conditions: ready, serving, terminating, not-ready; or
	// gone.
	Target     string   `json:"target"`
	Node       string   `json:"node"`
	Conditions []string `json:"conditions"`
	// State is active, growing, left-out or draining in the words of nftproxy get endpoints, or unused: these nodes send
	// nothing to it. Why says why.
	State string   `json:"state"`
	Why   string   `json:"why"`
	Nodes []string `json:"nodes"`
	Asked int      `json:"asked"`
}

// endpointKey names an endpoint of a Service port.
type endpointKey struct {
	service  serviceKey
	portName string
	protocol string
	at       netip.AddrPort
}

func (p *plugin) newGetEndpointsCommand() *cobra.Command {
	c := &getCommand{plugin: p}
	cmd := &cobra.Command{
		Use:     "endpoints SERVICE ...",
		Aliases: []string{"ep", "endpoint"},
		Args:    cobra.MinimumNArgs(1),
		Short:   "Show the endpoints of Services as the nodes hold them",
		Long: `endpoints lists the endpoints of Services by their EndpointSlices, and asks each node
which of them get new connections from it. Nodes that agree about an endpoint are one
row, so an endpoint with several rows differs between nodes:

  CONDITIONS   ready, serving, terminating or not-ready, by the EndpointSlice; gone: no
               EndpointSlice has it
  STATE        active: these nodes send new connections to it; growing: fewer, since it is
               new; left-out: none, since it does not answer them; draining: none, and it
               still has some; unused: none
  NODES        how many of the asked nodes say so

-o wide adds WHY and the names of the nodes.`,
		Example: `  kubectl nftproxy get endpoints cart -n shop
  kubectl nftproxy get endpoints cart -n shop -o wide`,
		RunE: func(cmd *cobra.Command, args []string) error { return c.endpoints(cmd.Context(), args) },
	}
	c.addFlags(cmd)
	return cmd
}

func (c *getCommand) endpoints(ctx context.Context, names []string) error {
	if err := c.check(); err != nil {
		return err
	}
	o, err := c.read(ctx, names)
	if err != nil {
		return err
	}
	whys := map[endpointKey]string{}
	t, err := askAll(ctx, c, o, func(text []byte, add func(endpointKey, string)) error {
		return readEndpoints(text, add, whys)
	}, "endpoints", names)
	if err != nil {
		return err
	}
	var rows []endpointRow
	listed := map[endpointKey]bool{}
	for i := range o.services {
		key := serviceKey{o.services[i].Namespace, o.services[i].Name}
		for j := range o.slices[key] {
			for k, row := range slicedEndpoints(key, &o.slices[key][j]) {
				listed[k] = true
				rows = append(rows, row.heldBy(k, o, t, whys)...)
			}
		}
	}
	rows = append(rows, staleEndpoints(o, t, listed, whys)...)
	if err := printRows(c.Out, &c.output, endpointColumns(), rows, func(r *endpointRow) object {
		return object{kind: "ServedEndpoint", namespace: r.Namespace, name: r.Endpoint, fields: r}
	}); err != nil {
		return err
	}
	return c.finish(t.noAnswers, len(rows))
}

// readEndpoints reads what nftproxy get endpoints prints. whys gets why an endpoint is left out or growing, of some
// node.
func readEndpoints(text []byte, add func(endpointKey, string), whys map[endpointKey]string) error {
	type row struct {
		Namespace, Service, PortName, Protocol, State, Why string
		Endpoint                                           netip.AddrPort
	}
	rows, err := unmarshalList[row](text, "endpoints")
	for _, r := range rows {
		key := endpointKey{serviceKey{r.Namespace, r.Service}, r.PortName, r.Protocol, r.Endpoint}
		add(key, r.State)
		if r.Why != "" {
			whys[key] = r.Why
		}
	}
	return err
}

// slicedEndpoints yields the endpoints of a slice. An address that is none, such as a host name, is left out, as
// proxies do.
func slicedEndpoints(key serviceKey, slice *discoveryv1.EndpointSlice) iter.Seq2[endpointKey, endpointRow] {
	return func(yield func(endpointKey, endpointRow) bool) {
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			addr, err := netip.ParseAddr(e.Addresses[0])
			for _, p := range slice.Ports {
				if err != nil || p.Port == nil {
					continue
				}
				protocol := cmp.Or(valueOf(p.Protocol), corev1.ProtocolTCP)
				k := endpointKey{key, valueOf(p.Name), strings.ToLower(string(protocol)),
					netip.AddrPortFrom(addr.Unmap(), uint16(*p.Port))}
				row := k.row()
				row.Node, row.Conditions = valueOf(e.NodeName), conditions(&e)
				if e.TargetRef != nil {
					row.Target = strings.ToLower(e.TargetRef.Kind) + "/" + e.TargetRef.Name
				}
				if !yield(k, row) {
					return
				}
			}
		}
	}
}

func valueOf[V any](p *V) (v V) {
	if p != nil {
		v = *p
	}
	return v
}

func (k *endpointKey) row() endpointRow {
	port := strings.TrimSpace(fmt.Sprintf("%s %d/%s", k.portName, k.at.Port(), k.protocol))
	return endpointRow{Namespace: k.service.namespace, Service: k.service.name, Port: port, Endpoint: k.at.String()}
}

// heldBy has the row for each way in which nodes hold the endpoint.
func (r endpointRow) heldBy(k endpointKey, o *objects, t *tally[endpointKey, string],
	whys map[endpointKey]string) (rows []endpointRow) {
	for _, g := range t.of(k, o.nodes) {
		r.State, r.Why, r.Nodes, r.Asked = "unused", "", g.nodes, len(t.answered)
		if g.held != nil {
			r.State = *g.held
		}
		if r.State == "left-out" || r.State == "growing" {
			r.Why = whys[k]
		}
		rows = append(rows, r)
	}
	return rows
}

// staleEndpoints has the rows of endpoints that nodes hold and no EndpointSlice has.
func staleEndpoints(o *objects, t *tally[endpointKey, string], listed map[endpointKey]bool,
	whys map[endpointKey]string) (rows []endpointRow) {
	keys := slices.SortedFunc(maps.Keys(t.groups), func(a, b endpointKey) int {
		return cmp.Or(strings.Compare(a.service.namespace, b.service.namespace), strings.Compare(a.service.name,
			b.service.name), strings.Compare(a.protocol, b.protocol), a.at.Compare(b.at))
	})
	for _, k := range keys {
		if listed[k] {
			continue
		}
		row := k.row()
		row.Conditions = []string{"gone"}
		rows = append(rows, slices.DeleteFunc(row.heldBy(k, o, t, whys), func(r endpointRow) bool {
			return r.State == "unused"
		})...)
	}
	return rows
}

// conditions are those of an endpoint as kube-proxy reads them: one that is not told is ready and serves.
func conditions(e *discoveryv1.Endpoint) (list []string) {
	is := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	ready := is(e.Conditions.Ready, true)
	for _, c := range []struct {
		word string
		is   bool
	}{{"ready", ready}, {"serving", !ready && is(e.Conditions.Serving, false)}, {"terminating",
		is(e.Conditions.Terminating, false)}} {
		if c.is {
			list = append(list, c.word)
		}
	}
	if len(list) == 0 {
		list = append(list, "not-ready")
	}
	return list
}

func endpointColumns() []column[endpointRow] {
	return []column[endpointRow]{
		{header: "Namespace", text: func(r *endpointRow) string { return r.Namespace }},
		{header: "Service", text: func(r *endpointRow) string { return r.Service }},
		{header: "Port", text: func(r *endpointRow) string { return r.Port }},
		{header: "Endpoint", text: func(r *endpointRow) string { return r.Endpoint }},
		{header: "Target", text: func(r *endpointRow) string { return r.Target }},
		{header: "Node", text: func(r *endpointRow) string { return r.Node }},
		{header: "Conditions", text: func(r *endpointRow) string { return strings.Join(r.Conditions, ",") }},
		{header: "State", text: func(r *endpointRow) string { return r.State }},
		{header: "Nodes", text: func(r *endpointRow) string { return fmt.Sprintf("%d/%d", len(r.Nodes), r.Asked) }},
		{header: "Why", wide: true, text: func(r *endpointRow) string { return r.Why }},
		{header: "Held-By", wide: true, text: func(r *endpointRow) string { return fewNodes(r.Nodes) }},
	}
}
