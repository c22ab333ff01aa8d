package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nftproxy/internal/service"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// sourceOptions are the flags, under kube-proxy's names where it has them, that
// say where services come from, and what of the node decides what is for them.
type sourceOptions struct {
	kubeconfig, master, manifests string
	hostnameOverride              string
	clusterCIDR                   string
	detectLocalMode               string
	podBridge, podInterfacePrefix string
	nodePortAddresses             []string
	table                         string
}

func (o *sourceOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file")
	f.StringVar(&o.master, "master", "", "address of the API server; overrides the kubeconfig's")
	f.StringVar(&o.manifests, "manifests", "", "file or directory of Service, EndpointSlice and Node manifests to follow instead of an API server")
	f.StringVar(&o.hostnameOverride, "hostname-override", "", "name of this node's Node object (default the host's name)")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "CIDR of the pods, or one of each family with a comma; what comes from elsewhere to a cluster IP is masqueraded")
	f.StringVar(&o.detectLocalMode, "detect-local-mode", detectClusterCIDR, "how pods' traffic is told: ClusterCIDR, NodeCIDR (by the Node's podCIDRs), BridgeInterface or InterfaceNamePrefix")
	f.StringVar(&o.podBridge, "pod-bridge-interface", "", "bridge that pods' traffic comes in by, for BridgeInterface")
	f.StringVar(&o.podInterfacePrefix, "pod-interface-name-prefix", "", "how the names of pods' interfaces begin, for InterfaceNamePrefix")
	f.StringSliceVar(&o.nodePortAddresses, "nodeport-addresses", nil, "CIDRs of the node's addresses that serve node ports, or \"primary\" (default primary)")
	f.StringVar(&o.table, "table", ruleset.DefaultTable, "name of the nftables tables")
}

// parse checks the flags and returns the node's name and the configuration.
func (o *sourceOptions) parse() (node string, c ruleset.Config, err error) {
	if o.manifests != "" && (o.kubeconfig != "" || o.master != "") {
		return "", c, fmt.Errorf("--manifests cannot be combined with --kubeconfig or --master")
	}
	if node, err = nodeName(o.hostnameOverride); err != nil {
		return "", c, err
	}
	c.Table = o.table
	if c.ClusterCIDRs, err = parseClusterCIDR(o.clusterCIDR); err != nil {
		return "", c, fmt.Errorf("--cluster-cidr: %w", err)
	}
	c.NodeCIDR = o.detectLocalMode == detectNodeCIDR
	if c.PodInterface, err = o.podInterface(); err != nil {
		return "", c, err
	}
	if c.NodePortAddresses, err = service.ParseNodePortAddresses(o.nodePortAddresses); err != nil {
		return "", c, fmt.Errorf("--nodeport-addresses: %w", err)
	}
	return node, c, nil
}

// client is that of the API server. Nobody is asked anything yet.
func (o *sourceOptions) client() (*rest.Config, *kubernetes.Clientset, error) {
	config, err := watch.ClientConfig(o.kubeconfig, o.master)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make a client: %w", err)
	}
	return config, client, nil
}

// The values of --detect-local-mode, as in kube-proxy.
const (
	detectClusterCIDR     = "ClusterCIDR"
	detectNodeCIDR        = "NodeCIDR"
	detectBridgeInterface = "BridgeInterface"
	detectInterfacePrefix = "InterfaceNamePrefix"
)

// podInterface is where pods' traffic comes in, in the modes that go by that.
func (o *sourceOptions) podInterface() (ruleset.Interface, error) {
	i, flag, most := ruleset.Interface{}, "", ruleset.MaxInterfaceName
	switch o.detectLocalMode {
	case detectClusterCIDR, detectNodeCIDR:
		return i, nil
	case detectBridgeInterface:
		i.Name, flag = o.podBridge, "--pod-bridge-interface"
	case detectInterfacePrefix:
		i.Name, i.Prefix, flag, most = o.podInterfacePrefix, true, "--pod-interface-name-prefix", ruleset.MaxInterfacePrefix
	default:
		return i, fmt.Errorf("--detect-local-mode: %q: want %s, %s, %s or %s", o.detectLocalMode, detectClusterCIDR, detectNodeCIDR, detectBridgeInterface, detectInterfacePrefix)
	}
	if n := len(i.Name); n == 0 || n > most {
		return i, fmt.Errorf("%s: %q: want 1 to %d bytes for --detect-local-mode=%s", flag, i.Name, most, o.detectLocalMode)
	}
	return i, nil
}

// nodeName is the override or the host's name, trimmed and in lower case, as
// kube-proxy and the kubelet have it.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("find the node's name: %w", err)
		}
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", fmt.Errorf("--hostname-override: empty node name")
	}
	return name, nil
}

func parseClusterCIDR(s string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for word := range strings.SplitSeq(s, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	if len(list) > 2 || len(list) == 2 && list[0].Addr().Is6() == list[1].Addr().Is6() {
		return nil, fmt.Errorf("%q: at most one CIDR of each family", s)
	}
	return list, nil
}
