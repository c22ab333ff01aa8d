package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/look/inspect"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/watch"
)

// sourceOptions are the flags that say where Services come from and how to tell
// their traffic on this node. A flag that kube-proxy has too has its name.
type sourceOptions struct {
	from                          watch.Source
	hostnameOverride              string
	clusterCIDR                   string
	detectLocalMode               string
	podBridge, podInterfacePrefix string
	nodePortAddresses             []string
	table                         string
	rules                         ruleset.Config // what flags set as they are
	claims                        claimOptions
	// like is the process whose flags count in place of these, 0 for none.
	like int
}

func (o *sourceOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.from.Kubeconfig, "kubeconfig", "", "kubeconfig file")
	f.StringVar(&o.from.Master, "master", "", "address of the API server; overrides the address in the kubeconfig")
	f.StringVar(&o.from.Manifests, ownPrefix+"manifests", "", "file or directory of manifests, instead of "+
		"an API server")
	f.StringVar(&o.hostnameOverride, "hostname-override", "", "name of this node's Node object (default the host's name)")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "CIDRs of all pods of the cluster, separated by commas")
	f.StringVar(&o.detectLocalMode, "detect-local-mode", detectClusterCIDR, "how to recognize pods: ClusterCIDR, "+
		"NodeCIDR (podCIDRs), BridgeInterface or InterfaceNamePrefix")
	f.StringVar(&o.podBridge, "pod-bridge-interface", "", "bridge through which traffic from pods comes in, for "+
		"--detect-local-mode=BridgeInterface")
	f.StringVar(&o.podInterfacePrefix, "pod-interface-name-prefix", "", "prefix of the names of pods' interfaces, for "+
		"--detect-local-mode=InterfaceNamePrefix")
	f.StringSliceVar(&o.nodePortAddresses, "nodeport-addresses", nil, "CIDRs of the node's addresses that serve node "+
		"ports, or primary, all, localhost (default primary)")
	f.StringVar(&o.table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables")
	o.claims.addFlags(f)
}

// addObjectFlags adds the flags that say which objects there are to a command that asks for their problems only.
func (o *sourceOptions) addObjectFlags(cmd *cobra.Command) {
	all := &cobra.Command{}
	o.addFlags(all)
	for _, name := range []string{"kubeconfig", "master", ownPrefix + "manifests", "hostname-override",
		ownPrefix + "service-proxy-name", "feature-gates"} {
		cmd.Flags().AddFlag(all.Flags().Lookup(name))
	}
}

// addLike adds the flag that names a process in place of flags.
func (o *sourceOptions) addLike(cmd *cobra.Command) {
	cmd.Flags().IntVar(&o.like, "like", 0, "take the objects and the flags of the nftproxy run with this process `ID`")
}

// objects returns what says which objects there are, all EndpointSlices among them: by the flags, or by those of a
// process.
func (o *sourceOptions) objects() (*inspect.FlowSource, error) {
	source := &inspect.FlowSource{InPod: true}
	if o.like == 0 {
		node, config, err := o.parse()
		if err != nil {
			return nil, err
		}
		source = o.flowSource(node, config)
	} else {
		if o.from != (watch.Source{}) {
			return nil, errors.New("--like cannot be combined with --kubeconfig, --master or --nftproxy-manifests")
		}
		given, err := runFlagsOf(o.like)
		if err != nil {
			return nil, fmt.Errorf("--like: %w", err)
		}
		c, err := given.config(nil)
		if err != nil {
			return nil, fmt.Errorf("--like: %w", err)
		}
		source.Source = sourceOf(c)
	}
	source.Objects.AllSlices = true
	return source, nil
}

// problems returns what says which problems a Service has by the objects; nil without a source of objects.
func (o *sourceOptions) problems(cmd *cobra.Command) (func(service.Name) []string, error) {
	if o.from == (watch.Source{}) && o.like == 0 {
		return nil, nil
	}
	source, err := o.objects()
	if err != nil {
		return nil, usageError{err}
	}
	addrs, err := hostaddr.List(cmd.Context())
	if err != nil {
		return nil, err
	}
	_, err = source.Snapshot(cmd.Context(), addrs, cmd.ErrOrStderr())
	return source.Problems, err
}

// parse checks the flags and returns the node's name and the configuration. The error joins one for each bad flag.
func (o *sourceOptions) parse() (node string, c ruleset.Config, err error) {
	var errs []error
	named := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	if o.from.Manifests != "" && (o.from.Kubeconfig != "" || o.from.Master != "") {
		errs = append(errs, errors.New("--nftproxy-manifests cannot be combined with --kubeconfig or --master"))
	}
	if node, err = nodeName(o.hostnameOverride); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, o.checkSource())
	errs = append(errs, checkTableName(o.table), o.claims.parse())
	c = o.rules
	c.Table = o.table
	c.ClusterCIDRs, err = parseClusterCIDR(o.clusterCIDR)
	named("cluster-cidr", err)
	c.NodeCIDR = o.detectLocalMode == detectNodeCIDR
	if c.PodInterface, err = o.podInterface(); err != nil {
		errs = append(errs, err)
	}
	c.NodePortAddresses, err = service.ParseNodePortAddresses(o.nodePortAddresses)
	named("nodeport-addresses", err)
	return node, c, errors.Join(errs...)
}

// flowSource has the Services by which commands judge flows, with what parse has returned.
func (o *sourceOptions) flowSource(node string, c ruleset.Config) *inspect.FlowSource {
	return &inspect.FlowSource{Source: inspect.Source{
		Source: o.from, Node: node, Rules: c,
		Objects: o.claims.watchOptions(ownServers(defaultMetricsAddress, defaultHealthAddress, defaultProbeAddress)),
	}}
}

// checkSource checks the flags without a request to the API server.
func (o *sourceOptions) checkSource() error {
	for _, c := range [][2]string{{"--nftproxy-manifests", o.from.Manifests}, {"--kubeconfig", o.from.Kubeconfig}} {
		if c[1] == "" {
			continue
		}
		if _, err := os.Stat(c[1]); err != nil {
			reason := err
			if path := (*fs.PathError)(nil); errors.As(err, &path) {
				reason = path.Err
			}
			return fmt.Errorf("%s: %q: %w", c[0], c[1], reason)
		}
	}
	if o.from.Master != "" {
		if u, err := url.Parse(o.from.Master); err != nil || u.Host == "" && strings.Contains(o.from.Master, ":") {
			return fmt.Errorf("--master: %q is not the address of an API server, such as https://192.0.2.1:6443", o.from.Master)
		}
	}
	return nil
}

// maxTableName is well below the length that nft takes.
const maxTableName = 63

// isTableName says whether the name is valid: nft and people must see where it ends.
func isTableName(s string) bool {
	for i, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case i > 0 && ('0' <= c && c <= '9' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return s != "" && len(s) <= maxTableName
}

// The values of --detect-local-mode, as in kube-proxy.
const (
	detectClusterCIDR     = "ClusterCIDR"
	detectNodeCIDR        = "NodeCIDR"
	detectBridgeInterface = "BridgeInterface"
	detectInterfacePrefix = "InterfaceNamePrefix"
)

// podInterface returns the interface that traffic from pods comes in by. It is empty for modes that do not use one.
func (o *sourceOptions) podInterface() (service.Interface, error) {
	i, flag, most := service.Interface{}, "", ruleset.MaxInterfaceName
	switch o.detectLocalMode {
	case detectClusterCIDR, detectNodeCIDR:
		return i, nil
	case detectBridgeInterface:
		i.Name, flag = o.podBridge, "--pod-bridge-interface"
	case detectInterfacePrefix:
		i.Name, i.Prefix, flag, most = o.podInterfacePrefix, true, "--pod-interface-name-prefix", ruleset.MaxInterfacePrefix
	default:
		return i, unknownValue("detect-local-mode", o.detectLocalMode)
	}
	if n := len(i.Name); n == 0 || n > most {
		return i, fmt.Errorf("%s: %q: want 1 to %d bytes for --detect-local-mode=%s", flag, i.Name, most, o.detectLocalMode)
	}
	return i, nil
}

// nodeName returns the override or the host's name, trimmed and in lower case, as kube-proxy and the kubelet do.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("find the node's name: %w", err)
		}
	}
	name = strings.ToLower(strings.TrimSpace(name))
	what := "--hostname-override"
	switch {
	case name == "":
		return "", fmt.Errorf("%s: empty node name", what)
	case strings.ContainsAny(name, "${}%()"):
		return "", fmt.Errorf("%s: %q is a variable that nothing has replaced: in a pod's args it is written $(NODE_NAME), "+
			"and needs an env with that name in the same container; elsewhere a shell has to replace it", what, override)
	}
	if override == "" {
		what = "the host's name, for want of --hostname-override"
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("%s: %q is not the name of a Node: %s", what, name, strings.Join(problems, "; "))
	}
	return name, nil
}

func parseClusterCIDR(s string) ([]netip.Prefix, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	list, err := parseRanges(strings.Split(s, ","))
	if err != nil {
		return nil, err
	}
	for _, family := range ip.Families() {
		if settings := (service.Settings{ClusterCIDRs: list}); len(settings.PodRanges(nil, family)) > service.MaxPodRanges {
			return nil, fmt.Errorf("%q: at most %d CIDRs of each family", s, service.MaxPodRanges)
		}
	}
	return list, nil
}

func parseRanges(words []string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, word := range words {
		p, err := service.ParseRange(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// claimOptions are the flags that say which Services this proxy serves, and that limit their claims.
type claimOptions struct {
	featureGates      []string
	ignoreExternalIPs bool     // by featureGates
	withoutEffect     []string // of featureGates
	proxyName         string
	balance           string
	maxElements       int
	maxAllElements    int
	maxAffinityPorts  int
	maxSourceLists    int
	protectedPorts    []string
	ports             []uint16 // of protectedPorts
}

func (o *claimOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.featureGates, "feature-gates", nil,
		"feature gates of kube-proxy, NAME=true or NAME=false; only "+kubeproxyconfig.GateExternalIPs+
			" has an effect (docs/tenants.md#by-addresses)")
	f.StringVar(&o.proxyName, ownPrefix+"service-proxy-name", "", "serve only Services whose label "+
		"service.kubernetes.io/service-proxy-name has this value (docs/migrate.md#optional-begin-with-one-service)")
	f.StringVar(&o.balance, balanceFlag, service.ByRandom.String(), "how to choose endpoints: random, client "+
		"(hash of the client's address), flow (also of its port) (docs/choices.md#hashes)")
	f.IntVar(&o.maxElements, ownPrefix+"max-service-elements", service.DefaultMaxElements, "maximum number of map "+
		"elements of one Service (docs/tenants.md)")
	f.IntVar(&o.maxAllElements, ownPrefix+"max-elements", service.DefaultMaxAllElements,
		fmt.Sprintf("maximum number of map elements of all Services beyond %d of each (docs/tenants.md)",
			service.UncountedElements))
	f.IntVar(&o.maxAffinityPorts, ownPrefix+"max-affinity-ports", service.DefaultMaxAffinityPorts,
		"maximum number of Service ports with session affinity (docs/tenants.md)")
	f.IntVar(&o.maxSourceLists, ownPrefix+"max-source-lists", service.DefaultMaxSourceLists,
		"maximum number of different lists of source ranges (docs/tenants.md)")
	f.StringSliceVar(&o.protectedPorts, ownPrefix+"protected-node-ports", []string{"22"}, "TCP ports of the node that "+
		"no Service gets, besides the kubelet's and the proxy's; empty for none (docs/tenants.md#by-addresses)")
}

// balanceFlag is that of the field ipvs.scheduler.
const balanceFlag = ownPrefix + "balance"

func (o *claimOptions) parse() error {
	if err := o.parseGates(); err != nil {
		return err
	}
	// Connections are counted for the Services that ask for it only.
	var asked service.Options
	if err := asked.Set("balance", o.balance); err != nil || asked.Balance == service.ByLeastConnections {
		return unknownValue(balanceFlag, o.balance)
	}
	for _, bound := range []struct {
		flag  string
		value int
	}{
		{"max-service-elements", o.maxElements}, {"max-elements", o.maxAllElements},
		{"max-affinity-ports", o.maxAffinityPorts}, {"max-source-lists", o.maxSourceLists},
	} {
		if bound.value < 1 {
			return fmt.Errorf("--%s%s: %d: want 1 or more; use a large number for no limit", ownPrefix, bound.flag, bound.value)
		}
	}
	if problems := validation.IsValidLabelValue(o.proxyName); len(problems) > 0 {
		return fmt.Errorf("--%sservice-proxy-name: %q is not the value of a label: %s", ownPrefix, o.proxyName,
			strings.Join(problems, "; "))
	}
	o.ports = nil
	for _, text := range o.protectedPorts {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("--nftproxy-protected-node-ports: %q: want a port, 1 to 65535", text)
		}
		o.ports = append(o.ports, uint16(port))
	}
	return nil
}

// parseGates reads --feature-gates. Of a gate that is given twice the last value counts, as with kube-proxy.
func (o *claimOptions) parseGates() error {
	o.ignoreExternalIPs, o.withoutEffect = false, nil
	for _, word := range o.featureGates {
		word = strings.TrimSpace(word)
		name, value, _ := strings.Cut(word, "=")
		name = strings.TrimSpace(name)
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		switch {
		case err != nil || name == "":
			return fmt.Errorf("--feature-gates: %q: want NAME=true or NAME=false", word)
		case name == kubeproxyconfig.GateExternalIPs:
			o.ignoreExternalIPs = !on
		default:
			o.withoutEffect = append(o.withoutEffect, word)
		}
	}
	return nil
}

// ownServers returns the addresses of the proxy's own servers, by server.
func ownServers(metrics, health, probe string) map[string]string {
	return map[string]string{"nftproxy's metrics": metrics, "nftproxy's health server": health,
		"nftproxy's probe server": probe}
}

// watchOptions returns the flags as a watcher's options. servers has the addresses
// of the proxy's own servers; an empty address stands for a server that is off.
func (o *claimOptions) watchOptions(servers map[string]string) watch.Options {
	w := watch.Options{ProxyName: o.proxyName, IgnoreExternalIPs: o.ignoreExternalIPs, MaxElements: o.maxElements,
		MaxAllElements: o.maxAllElements, MaxAffinityPorts: o.maxAffinityPorts, MaxSourceLists: o.maxSourceLists}
	var asked service.Options
	_ = asked.Set("balance", o.balance) // parse has judged it
	w.Balance = asked.Balance
	for _, port := range o.ports {
		w.OwnPorts = append(w.OwnPorts, watch.OwnPort{Port: port,
			Whose: fmt.Sprintf("the node itself (--nftproxy-protected-node-ports=%d)", port)})
	}
	for whose, address := range servers {
		// The server itself reports an address that it cannot listen on.
		at, err := net.ResolveTCPAddr("tcp", address)
		if address == "" || err != nil || at.Port == 0 {
			continue
		}
		own := watch.OwnPort{Port: uint16(at.Port), Whose: whose}
		if a, ok := netip.AddrFromSlice(at.IP); ok && !a.Unmap().IsUnspecified() {
			own.Addr = a.Unmap()
		}
		w.OwnPorts = append(w.OwnPorts, own)
	}
	return w
}
