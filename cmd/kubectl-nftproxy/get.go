package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/model/printable"
)

// getCommand is what get services and get endpoints share.
type getCommand struct {
	*plugin
	output
	scope
	selector string
}

// chosenNodes says which nodes are asked. What no names stand for is the command's.
type chosenNodes struct{ nodes []string }

func (c *chosenNodes) addNodeFlag(f *pflag.FlagSet) {
	f.StringSliceVar(&c.nodes, "node", nil, "ask only these nodes")
}

// scope says which nodes are asked, all if it names none, and of which Services.
type scope struct {
	chosenNodes
	allNamespaces bool
}

func (s *scope) addScopeFlags(f *pflag.FlagSet) {
	s.addNodeFlag(f)
	f.BoolVarP(&s.allNamespaces, "all-namespaces", "A", false, "Services of all namespaces")
}

func (p *plugin) newGetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show what the API server says of Services and endpoints, what the nodes hold, and who differs",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.newGetServicesCommand(), p.newGetEndpointsCommand())
	return cmd
}

func (c *getCommand) addFlags(cmd *cobra.Command) {
	c.output.addFlags(cmd)
	f := cmd.Flags()
	c.addScopeFlags(f)
	f.StringVarP(&c.selector, "selector", "l", "", "only Services with these labels")
}

// serviceKey names a Service.
type serviceKey struct{ namespace, name string }

// objects is what the API server says.
type objects struct {
	cluster   *cluster.Cluster
	namespace string // empty for all
	// services are those that were asked for and that nftproxy serves, known all that there are.
	services []corev1.Service
	known    map[serviceKey]bool
	slices   map[serviceKey][]discoveryv1.EndpointSlice
	nodes    []cluster.Node
}

// read reads the objects. names are those of the Services; none stands for all.
func (c *getCommand) read(ctx context.Context, names []string) (*objects, error) {
	of, nodes, err := c.nodesOf(ctx, c.nodes)
	if err != nil {
		return nil, err
	}
	o := &objects{cluster: of, nodes: nodes, namespace: c.namespace(), known: map[serviceKey]bool{},
		slices: map[serviceKey][]discoveryv1.EndpointSlice{}}
	if c.allNamespaces {
		o.namespace = ""
	}
	services, err := of.Client.CoreV1().Services(o.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	if err := c.choose(o, services.Items, names); err != nil {
		return nil, err
	}
	list, err := of.Client.DiscoveryV1().EndpointSlices(o.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list EndpointSlices: %w", err)
	}
	for _, s := range list.Items {
		key := serviceKey{s.Namespace, s.Labels[discoveryv1.LabelServiceName]}
		o.slices[key] = append(o.slices[key], s)
	}
	return o, nil
}

// choose keeps the Services that were asked for. The error is about a name that no Service has.
func (c *getCommand) choose(o *objects, list []corev1.Service, names []string) error {
	selector, err := labels.Parse(c.selector)
	if err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	proxy := o.nodes[0].Flag("nftproxy-service-proxy-name")
	missing := slices.Clone(names)
	for i := range list {
		s := &list[i]
		o.known[serviceKey{s.Namespace, s.Name}] = true
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == s.Name })
		named := len(names) == 0 || slices.Contains(names, s.Name)
		if named && isServed(s, proxy) && selector.Matches(labels.Set(s.Labels)) {
			o.services = append(o.services, *s)
		}
	}
	var errs []error
	for _, name := range missing {
		errs = append(errs, apierrors.NewNotFound(corev1.Resource("services"), name))
	}
	return errors.Join(errs...)
}

// isServed says whether an nftproxy with that --nftproxy-service-proxy-name serves the Service.
func isServed(s *corev1.Service, proxy string) bool {
	return s.Labels["service.kubernetes.io/service-proxy-name"] == proxy &&
		s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone && s.Spec.ClusterIP != ""
}

// tally groups the nodes by how they hold each of many things, while they answer: a large cluster has millions of rows,
// and most are equal. K names a thing, and H is how a node holds it.
type tally[K, H comparable] struct {
	mu sync.Mutex
	// groups has the nodes of each way, by their numbers.
	groups map[K]map[H][]int32
	// answered are the nodes that have answered, noAnswers the others with the reason.
	answered  []int32
	noAnswers []string
}

// askAll has each node run a command about Services with JSON output, and calls read with the answer. read adds what
// the node holds.
func askAll[K, H comparable](ctx context.Context, c *getCommand, o *objects,
	read func(text []byte, add func(K, H)) error, what string, names []string) (*tally[K, H], error) {
	t := &tally[K, H]{groups: map[K]map[H][]int32{}}
	command := []string{"get", what, "-o", "json"}
	if o.namespace != "" {
		command = append(append(command, "-n", o.namespace), names...)
	}
	number := map[string]int32{}
	for i := range o.nodes {
		number[o.nodes[i].Name] = int32(i)
	}
	one := func(ctx context.Context, n *cluster.Node) struct{} {
		text, err := o.cluster.Ask(ctx, n, append(slices.Clone(command), n.Tables()...)...)
		if exit := (*cluster.ExitError)(nil); errors.As(err, &exit) && len(text) > 0 {
			err = nil // The node lacks a name, and prints the others.
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if err == nil {
			err = read(text, func(k K, h H) { t.add(number[n.Name], k, h) })
		}
		if err != nil {
			t.noAnswers = append(t.noAnswers, fmt.Sprintf("node %s: %v", n.Name, err))
			return struct{}{}
		}
		t.answered = append(t.answered, number[n.Name])
		return struct{}{}
	}
	_, err := cluster.Each(ctx, o.nodes, cluster.DefaultRound(c.terminal()), one)
	slices.Sort(t.noAnswers)
	return t, err
}

func (t *tally[K, H]) add(node int32, k K, h H) {
	if t.groups[k] == nil {
		t.groups[k] = map[H][]int32{}
	}
	if nodes := t.groups[k][h]; !slices.Contains(nodes[max(0, len(nodes)-1):], node) {
		t.groups[k][h] = append(nodes, node)
	}
}

// group is the nodes that hold something in the same way; held is nil if they do not hold it.
type group[H any] struct {
	held  *H
	nodes []string
}

// of returns the groups of a thing, the largest first.
func (t *tally[K, H]) of(k K, names []cluster.Node) (list []group[H]) {
	holding := map[int32]bool{}
	for h, nodes := range t.groups[k] {
		g := group[H]{held: &h}
		for _, n := range nodes {
			holding[n] = true
			g.nodes = append(g.nodes, names[n].Name)
		}
		list = append(list, g)
	}
	var without group[H]
	for _, n := range t.answered {
		if !holding[n] {
			without.nodes = append(without.nodes, names[n].Name)
		}
	}
	if len(without.nodes) > 0 {
		list = append(list, without)
	}
	for i := range list {
		slices.Sort(list[i].nodes)
	}
	slices.SortFunc(list, func(a, b group[H]) int {
		return cmp.Or(cmp.Compare(len(b.nodes), len(a.nodes)), strings.Compare(a.nodes[0], b.nodes[0]))
	})
	return list
}

// finish says on stderr who did not answer, and that nothing was found.
func (c *getCommand) finish(noAnswers []string, rows int) error {
	for _, text := range noAnswers {
		fmt.Fprintf(c.ErrOut, "kubectl nftproxy: %s\n", printable.Text(text))
	}
	switch {
	case len(noAnswers) > 0:
		return statusWrong
	case rows == 0:
		fmt.Fprintln(c.ErrOut, "No resources found")
	}
	return nil
}

// unmarshalList reads the list that a command prints under a name.
func unmarshalList[R any](text []byte, name string) (rows []R, err error) {
	var lists map[string]json.RawMessage
	if err := json.Unmarshal(text, &lists); err != nil {
		return nil, err
	}
	err = json.Unmarshal(lists[name], &rows)
	return rows, err
}
