package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/model/printable"
)

type explainCommand struct {
	*plugin
	from, output string
	node         string
	verbose      bool
	followed     int

	of    *cluster.Cluster
	names *names
	nodes []cluster.Node
}

// The values of -o of explain.
const (
	outputText = "text"
	outputJSON = "json"
	outputYAML = "yaml"
)

// The exit status of nftproxy explain where no rule is about the packet.
const statusUntouched = 3

// explainPatience is how long a node may take: it lists the objects of the API server first.
const explainPatience = 45 * time.Second

func (p *plugin) newExplainCommand() *cobra.Command {
	c := &explainCommand{plugin: p}
	cmd := &cobra.Command{
		Use: "explain (svc/NAME[:PORT[/PROTOCOL]] | pod/NAME:PORT | ADDRESS:PORT[/PROTOCOL]) " +
			"[--from pod/NAME | node/NAME | outside]",
		Short: "Say what happens to a connection on the client's node and on the endpoint's, and why",
		Long: `explain finds the client's node and runs nftproxy explain there: what the rules of that
node do with the first packet of a connection, and why. Then it goes on where the packet
goes: on the nodes of the likeliest endpoints it asks what the rules there do with the
packet, and which other programs' chains may drop it.

The destination is a Service and the name or number of its port, which may be left out
if it has one; a pod and a port; or an address and a port. --from is a pod, a node, or
outside, a client that is not in the cluster. Its packet reaches the node of --node, or
that which has the address. Without --from the client is a pod of the node of --node, or
of the first node.

The exit status is 0 if the packet goes to an endpoint, or to a destination that is no
Service's; 1 if it is refused or dropped; and 2 if explain could not tell.

-o json and -o yaml print client (node, explanation or error, note) and endpoints (endpoint
beside these), each explanation as by nftproxy explain, and names (of addresses).`,
		Example: `  kubectl nftproxy explain svc/web --from pod/client
  kubectl nftproxy explain -n shop svc/cart:http --from node/worker-3
  kubectl nftproxy explain 10.96.0.10:53/udp --from pod/client -n shop
  kubectl nftproxy explain 192.168.0.2:30080 --from outside`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&c.from, "from", "", "the client: pod/`NAME`, node/NAME or outside")
	f.StringVar(&c.node, "node", "", "the node that a packet from outside reaches first, or of the client")
	f.IntVar(&c.followed, "follow", 3, "on the nodes of so many endpoints ask what happens there")
	f.BoolVar(&c.verbose, "verbose", false, "print the rules on the way")
	f.StringVarP(&c.output, "output", "o", outputText, "text, json or yaml")
	return cmd
}

// explained has the fields of an explanation that the plugin reads.
type explained struct {
	Outcome string `json:"outcome"`
	Summary string `json:"summary"`
	Packet  struct {
		Protocol    string `json:"protocol"`
		Source      string `json:"source"`
		From        string `json:"from"`
		Destination string `json:"destination"`
	} `json:"packet"`
	Service   string              `json:"service"`
	Port      string              `json:"port"`
	Endpoints []explainedEndpoint `json:"endpoints"`
	Stops     []struct {
		Endpoint string `json:"endpoint"`
		Why      string `json:"why"`
	} `json:"stops"`
	Steps []struct {
		Chain string `json:"chain"`
		Rule  string `json:"rule"`
		Says  string `json:"says"`
	} `json:"steps"`
	Causes   []string `json:"causes"`
	Problems []string `json:"problems"`
	Remedies []string `json:"remedies"`
	Others   []struct {
		Says string `json:"says"`
	} `json:"others"`
	Notes []string `json:"notes"`
}

type explainedEndpoint struct {
	Address     string  `json:"address"`
	Chance      float64 `json:"chance"`
	Masqueraded bool    `json:"masqueraded"`
	Way         string  `json:"way"`
	About       string  `json:"about"`
}

// place is what one node says.
type place struct {
	Endpoint string `json:"endpoint,omitempty"`
	Node     string `json:"node"`
	Error    string `json:"error,omitempty"`
	// Note says what the explanation lacks.
	Note        string          `json:"note,omitempty"`
	Explanation json.RawMessage `json:"explanation,omitempty"`

	explained *explained
	status    int
}

// answer is all of it.
type answer struct {
	Client    place    `json:"client"`
	Endpoints []place  `json:"endpoints"`
	Names     []string `json:"names"`
}

func (c *explainCommand) run(ctx context.Context, target string) error {
	if err := c.checkFlags(); err != nil {
		return err
	}
	if err := c.connect(ctx); err != nil {
		return err
	}
	from, err := c.client(ctx)
	if err != nil {
		return err
	}
	to, err := c.destination(ctx, target, from.addrs)
	if err != nil {
		return err
	}
	node, source, err := c.start(ctx, from, to)
	if err != nil {
		return err
	}
	a := c.answer(ctx, node, source, to)
	if err := c.write(a); err != nil {
		return err
	}
	kind, _, named := strings.Cut(target, "/")
	return a.exit(named && isService(kind))
}

// answer asks the client's node, and those where the packet goes.
func (c *explainCommand) answer(ctx context.Context, node *cluster.Node, source string, to destination) *answer {
	a := &answer{Client: c.ask(ctx, node, source, to.String(), "--like=1"), Endpoints: []place{}}
	if e := a.Client.explained; e != nil {
		a.Endpoints = c.follow(ctx, node, e, to)
	}
	var texts []string
	for _, p := range append([]place{a.Client}, a.Endpoints...) {
		texts = append(texts, string(p.Explanation))
	}
	a.Names = c.names.legend(ctx, texts...)
	return a
}

// exit returns the exit status, nil for 0.
func (a *answer) exit(service bool) error {
	switch status := a.Client.status; {
	case a.Client.explained == nil:
		return statusFailed
	case status == statusUntouched && service:
		return statusWrong // The node does not serve it.
	case status != 0 && status != statusUntouched:
		return exitStatus(status)
	}
	return nil
}

func (c *explainCommand) checkFlags() error {
	kind, name, _ := strings.Cut(c.from, "/")
	switch {
	case !slices.Contains([]string{outputText, outputJSON, outputYAML}, c.output):
		return fmt.Errorf("--output: %q: want text, json or yaml", c.output)
	case c.followed < 0:
		return fmt.Errorf("--follow: %d is negative", c.followed)
	case c.from == "" || c.from == "outside":
		return nil
	case name == "" || !slices.Contains([]string{"pod", "po", "pods", "node", "no", "nodes"}, kind):
		return fmt.Errorf("--from %q: want pod/NAME, node/NAME or outside", c.from)
	case c.node != "":
		return fmt.Errorf("--node: the node of %s is known", c.from)
	}
	return nil
}

func (c *explainCommand) connect(ctx context.Context) (err error) {
	if c.of, c.nodes, err = c.nodesOf(ctx, nil); err != nil {
		return err
	}
	c.names, err = readNames(ctx, c.of, c.namespace())
	return err
}

// destination is an address, a port and a protocol.
type destination struct {
	netip.AddrPort
	protocol string
}

func (d destination) String() string { return d.AddrPort.String() + "/" + d.protocol }

// destination finds the address that a name stands for: of those of a dual-stack Service or pod, one of a family that
// the client has.
func (c *explainCommand) destination(ctx context.Context, target string, client []netip.Addr) (destination, error) {
	kind, name, named := strings.Cut(target, "/")
	switch {
	case named && isService(kind):
		return c.serviceAddress(ctx, name, client)
	case named && slices.Contains([]string{"pod", "po", "pods"}, kind):
		return c.podAddress(ctx, name, client)
	}
	i := strings.LastIndex(target, ":")
	addr, addrErr := netip.ParseAddr(strings.Trim(target[:max(i, 0)], "[]"))
	port, protocol, err := portAndProtocol(target[i+1:])
	if addrErr != nil || err != nil {
		return destination{}, fmt.Errorf("%q: want svc/NAME[:PORT], pod/NAME:PORT or ADDRESS:PORT[/PROTOCOL]", target)
	}
	return destination{netip.AddrPortFrom(addr.Unmap(), port), protocol}, nil
}

// isService says whether a word stands for Services, as for kubectl.
func isService(kind string) bool {
	return slices.Contains([]string{"svc", "service", "services"}, kind)
}

// portAndProtocol reads PORT or PORT/PROTOCOL, without which it is tcp.
func portAndProtocol(text string) (port uint16, protocol string, err error) {
	number, protocol, given := strings.Cut(text, "/")
	if !given {
		protocol = "tcp"
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err == nil && (n == 0 || !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol)) {
		err = strconv.ErrSyntax
	}
	return uint16(n), protocol, err
}

func (c *explainCommand) serviceAddress(ctx context.Context, name string,
	client []netip.Addr) (d destination, err error) {
	name, port, _ := strings.Cut(name, ":")
	port, protocol, _ := strings.Cut(port, "/")
	s, err := c.of.Client.CoreV1().Services(c.namespace()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return d, fmt.Errorf("get Service %s/%s: %w", c.namespace(), name, err)
	}
	d.AddrPort = netip.AddrPortFrom(reachable(s.Spec.ClusterIPs, client), 0)
	if !d.Addr().IsValid() {
		return d, fmt.Errorf("service %s/%s has no cluster IP for the client (%s)", s.Namespace, name,
			strings.Join(s.Spec.ClusterIPs, ", "))
	}
	var all []string
	found := 0
	for _, p := range s.Spec.Ports {
		number, its := strconv.Itoa(int(p.Port)), strings.ToLower(string(p.Protocol))
		all = append(all, strings.TrimSpace(p.Name+" "+number+"/"+its))
		if (port == "" || port == p.Name || port == number) && (protocol == "" || protocol == its) {
			found++
			d = destination{netip.AddrPortFrom(d.Addr(), uint16(p.Port)), its}
		}
	}
	if found != 1 {
		return d, fmt.Errorf("service %s/%s has %d ports %q: want one of %s", s.Namespace, name, found, port,
			strings.Join(all, ", "))
	}
	return d, nil
}

// reachable returns the first of the addresses whose family the client has; any for a client without addresses.
func reachable(list []string, client []netip.Addr) netip.Addr {
	for _, text := range list {
		a, err := netip.ParseAddr(text)
		if err == nil && (len(client) == 0 || likeOf(client, a).IsValid()) {
			return a
		}
	}
	return netip.Addr{}
}

// likeOf returns the first of the addresses that has the family of another one.
func likeOf(list []netip.Addr, like netip.Addr) netip.Addr {
	for _, a := range list {
		if a.Is4() == like.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func (c *explainCommand) podAddress(ctx context.Context, name string, client []netip.Addr) (d destination, err error) {
	name, text, _ := strings.Cut(name, ":")
	port, protocol, err := portAndProtocol(text)
	if err != nil {
		return d, fmt.Errorf("pod/%s: want a port, as in pod/%s:8080 or pod/%s:53/udp", name, name, name)
	}
	pod, err := c.pod(ctx, c.of, name)
	if err != nil {
		return d, err
	}
	addr := reachable(podIPs(pod), client)
	if !addr.IsValid() {
		return d, fmt.Errorf("pod %s has no address for the client yet", name)
	}
	return destination{netip.AddrPortFrom(addr, port), protocol}, nil
}

func (p *plugin) pod(ctx context.Context, of *cluster.Cluster, name string) (*corev1.Pod, error) {
	pod, err := of.Client.CoreV1().Pods(p.namespace()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", p.namespace(), name, err)
	}
	if pod.Spec.NodeName == "" {
		return nil, fmt.Errorf("pod %s/%s is on no node yet", pod.Namespace, name)
	}
	return pod, nil
}

func podIPs(p *corev1.Pod) (list []string) {
	for _, ip := range p.Status.PodIPs {
		list = append(list, ip.IP)
	}
	return list
}

// client is who sends the packet. node is empty if that is left to the destination, addrs if it has any family.
type client struct {
	node  string
	addrs []netip.Addr
	// own says that a process of the node sends it.
	own, outside bool
}

// client finds the client of --from.
func (c *explainCommand) client(ctx context.Context) (client, error) {
	kind, name, _ := strings.Cut(c.from, "/")
	switch kind {
	case "":
		return client{node: c.node}, nil
	case "outside":
		return client{node: c.node, outside: true}, nil
	case "node", "no", "nodes":
		return client{node: name, own: true}, nil
	}
	pod, err := c.pod(ctx, c.of, name)
	if err != nil {
		return client{}, err
	}
	from := clientOf(pod)
	if len(from.addrs) == 0 && !from.own {
		return client{}, fmt.Errorf("pod %s has no address yet", name)
	}
	return from, nil
}

// clientOf is a pod as a client. One on the host's network is a process of the node.
func clientOf(pod *corev1.Pod) client {
	from := client{node: pod.Spec.NodeName, own: pod.Spec.HostNetwork}
	for _, text := range podIPs(pod) {
		if a, err := netip.ParseAddr(text); err == nil && !from.own {
			from.addrs = append(from.addrs, a)
		}
	}
	return from
}

// start returns the node to ask first, and what to tell it of the client.
func (c *explainCommand) start(ctx context.Context, from client, to destination) (*cluster.Node, string, error) {
	source := ""
	switch {
	case from.own:
		source = "node"
	case from.outside && to.Addr().Is4():
		source = "203.0.113.1" // No cluster has it (RFC 5737), nor the next one (RFC 3849).
	case from.outside:
		source = "2001:db8:ffff::1"
	case len(from.addrs) > 0:
		a := likeOf(from.addrs, to.Addr())
		if !a.IsValid() {
			return nil, "", fmt.Errorf("%s has no address of the family of %s", c.from, to.Addr())
		}
		source = a.String()
	}
	node := from.node
	if h := c.names.of(ctx, to.Addr()); node == "" && from.outside && strings.HasPrefix(h.name, "node/") {
		node = h.node
	}
	for i := range c.nodes {
		if n := &c.nodes[i]; n.Name == node || node == "" && n.Pod != nil {
			return n, source, nil
		}
	}
	return nil, "", fmt.Errorf("nftproxy's DaemonSet is not for a node %q", node)
}

// ask runs explain on a node. With objects it explains by those of the API server, too, if the node can.
func (c *explainCommand) ask(ctx context.Context, node *cluster.Node, from, to string, objects ...string) place {
	p := place{Node: node.Name}
	args := slices.Concat([]string{"explain", "-o", "json"}, objects)
	if len(objects) == 0 {
		args = append(args, node.Tables()...)
	}
	if from != "" {
		args = append(args, "--from", from)
	}
	asked, cancel := context.WithTimeoutCause(ctx, explainPatience, fmt.Errorf("no answer within %s", explainPatience))
	defer cancel()
	text, err := c.of.Ask(asked, node, append(args, to)...)
	if exit := (*cluster.ExitError)(nil); errors.As(err, &exit) {
		// Refused, dropped and untouched have exit statuses of their own, and an explanation.
		if p.status = exit.Status; len(text) > 0 {
			err = nil
		}
	}
	e := &explained{}
	if err == nil {
		err = json.Unmarshal(text, e)
	}
	switch {
	case err == nil:
		p.explained, p.Explanation = e, text
	case len(objects) > 0 && ctx.Err() == nil:
		// An older nftproxy does not know the flag, and a node whose API server is away cannot do it.
		p = c.ask(ctx, node, from, to)
		p.Note = "without the objects of the API server: " + err.Error()
	default:
		p.Error = err.Error()
	}
	return p
}

// follow asks, on the nodes of the likeliest endpoints, what happens to the packet there. A packet that is no Service's
// goes to its own destination.
func (c *explainCommand) follow(ctx context.Context, from *cluster.Node, e *explained, to destination) []place {
	places := []place{}
	if namespace, service, is := strings.Cut(e.Service, "/"); is {
		if err := c.names.addEndpoints(ctx, namespace, service); err != nil {
			fmt.Fprintf(c.ErrOut, "kubectl nftproxy: %s\n", printable.Text(err.Error()))
		}
	}
	endpoints := e.Endpoints
	if e.Outcome == "untouched" {
		endpoints = []explainedEndpoint{{Address: to.AddrPort.String()}}
	}
	for _, endpoint := range endpoints[:min(len(endpoints), maxLookups)] {
		at, err := netip.ParseAddrPort(endpoint.Address)
		if err != nil || len(places) == c.followed {
			continue
		}
		name := c.names.of(ctx, at.Addr()).node
		if name == from.Name || name == "" {
			continue
		}
		// The endpoint sees the client, or the client's node if that masquerades.
		source := e.Packet.Source
		if own := c.names.addressOf(from.Name, at.Addr()); endpoint.Masqueraded && own.IsValid() {
			source = own.String()
		}
		p := place{Node: name, Error: "nftproxy's DaemonSet is not for this node"}
		if i := slices.IndexFunc(c.nodes, func(n cluster.Node) bool { return n.Name == name }); i >= 0 {
			p = c.ask(ctx, &c.nodes[i], source, destination{at, to.protocol}.String())
		}
		p.Endpoint = endpoint.Address
		places = append(places, p)
	}
	return places
}

// namespace is that of -n or of the context.
func (p *plugin) namespace() string {
	namespace, _, err := p.connection.ToRawKubeConfigLoader().Namespace()
	if err != nil || namespace == "" {
		return metav1.NamespaceDefault
	}
	return namespace
}

func (c *explainCommand) write(a *answer) error {
	switch c.output {
	case outputJSON, outputYAML:
		text, err := json.MarshalIndent(a, "", "  ")
		if err != nil {
			return err
		}
		text = []byte(printable.JSON(string(text)))
		if c.output == outputYAML {
			if text, err = yaml.JSONToYAML(text); err != nil {
				return err
			}
		}
		_, err = fmt.Fprintln(c.Out, strings.TrimSpace(string(text)))
		return err
	}
	c.writeText(c.Out, a)
	return nil
}

func (c *explainCommand) writeText(w io.Writer, a *answer) {
	c.writePlace(w, &a.Client, "On the client's node "+a.Client.Node+", by its kernel")
	for i := range a.Endpoints {
		p := &a.Endpoints[i]
		c.writePlace(w, p, fmt.Sprintf("On node %s of the endpoint %s, by its kernel", p.Node, p.Endpoint))
	}
	writeLines(w, "By the API server", a.Names)
}

func (c *explainCommand) writePlace(w io.Writer, p *place, heading string) {
	fmt.Fprintf(w, "%s:\n", printable.Text(heading))
	if p.Note != "" {
		fmt.Fprintf(w, "  %s\n", printable.Text(p.Note))
	}
	e := p.explained
	if e == nil {
		fmt.Fprintf(w, "  %s\n\n", printable.Text(p.Error))
		return
	}
	service := ""
	if e.Service != "" {
		service = ", of Service " + e.Service + ":" + e.Port
	}
	fmt.Fprintf(w, "  %s\n", printable.Text(fmt.Sprintf("%s from %s (%s) to %s%s: %s.", e.Packet.Protocol, e.Packet.Source,
		e.Packet.From, e.Packet.Destination, service, e.Summary)))
	const most = 10
	for i, at := range e.Endpoints {
		if i == most {
			fmt.Fprintf(w, "  %d more endpoints\n", len(e.Endpoints)-most)
			break
		}
		words := []string{at.Address, fmt.Sprintf("%.3g %%", 100*at.Chance), at.Way, at.About}
		words = slices.DeleteFunc(words, func(s string) bool { return s == "" })
		fmt.Fprintf(w, "    %s\n", printable.Text(strings.Join(words, "  ")))
	}
	if c.verbose {
		for _, s := range e.Steps {
			fmt.Fprintf(w, "    %s\n", printable.Text(fmt.Sprintf("%s: %s (%s)", s.Chain, s.Says, s.Rule)))
		}
	}
	for _, s := range e.Stops {
		fmt.Fprintf(w, "  %s\n", printable.Text(s.Endpoint+" is not reached: "+s.Why))
	}
	writeLines(w, "  Why", e.Causes)
	writeLines(w, "  What cannot be used of the Service's objects", e.Problems)
	writeLines(w, "  What to do", e.Remedies)
	var others []string
	for _, o := range e.Others {
		others = append(others, o.Says)
	}
	writeLines(w, "  Chains of other programs on the way, which may drop or change it", others)
	writeLines(w, "  Note", e.Notes)
	fmt.Fprintln(w)
}

// writeLines writes a heading with lines below, and nothing without lines.
func writeLines(w io.Writer, heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(w, "%s:\n", heading)
	indent := strings.Repeat(" ", len(heading)-len(strings.TrimLeft(heading, " "))+2)
	for _, line := range lines {
		fmt.Fprintf(w, "%s%s\n", indent, printable.Text(line))
	}
}
