package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"nftproxy/internal/proxy"
	"nftproxy/internal/service"
	"nftproxy/nft/ruleset"
)

// runOptions are the flags of run, under kube-proxy's names where it has them.
type runOptions struct {
	kubeconfig, master, manifests string
	hostnameOverride              string
	clusterCIDR                   string
	detectLocalMode               string
	podBridge, podInterfacePrefix string
	masqueradeAll                 bool
	masqueradeBit                 int
	nodePortAddresses             []string
	metricsAddress, healthAddress string
	table                         string
	minSyncPeriod                 time.Duration
	verbosity                     int
}

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Follow services and keep the node's nftables in step",
		Long: `run follows Services and EndpointSlices, from the API server or from manifests,
and keeps the tables "ip nftproxy" and "ip6 nftproxy" in step until it gets
SIGTERM or SIGINT. The rules stay when it ends: connections go on, and the next
start writes only what has changed since.`,
		Example: `  nftproxy run --kubeconfig /etc/kubernetes/proxy.conf --cluster-cidr 10.244.0.0/16
  nftproxy run --manifests ./services --hostname-override node-1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := o.daemon(newLogger(os.Stderr, o.verbosity))
			if err != nil {
				return usageError{err}
			}
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without it and --master the pod's service account is used")
	f.StringVar(&o.master, "master", "", "address of the API server; overrides the kubeconfig's")
	f.StringVar(&o.manifests, "manifests", "", "file or directory of Service, EndpointSlice and Node manifests to follow instead of an API server")
	f.StringVar(&o.hostnameOverride, "hostname-override", "", "name of this node's Node object (default the host's name)")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "CIDR of the pods, or one of each family with a comma; what comes from elsewhere to a cluster IP is masqueraded")
	f.StringVar(&o.detectLocalMode, "detect-local-mode", detectClusterCIDR, "how pods' traffic is told: ClusterCIDR, NodeCIDR (by the Node's podCIDRs), BridgeInterface or InterfaceNamePrefix")
	f.StringVar(&o.podBridge, "pod-bridge-interface", "", "bridge that pods' traffic comes in by, for BridgeInterface")
	f.StringVar(&o.podInterfacePrefix, "pod-interface-name-prefix", "", "how the names of pods' interfaces begin, for InterfaceNamePrefix")
	f.BoolVar(&o.masqueradeAll, "masquerade-all", false, "masquerade everything that goes to a cluster IP")
	f.IntVar(&o.masqueradeBit, "masquerade-bit", ruleset.DefaultMasqueradeBit, "bit of the packet mark, 0 to 31, that says inside the node what to masquerade")
	f.StringSliceVar(&o.nodePortAddresses, "nodeport-addresses", nil, "CIDRs of the node's addresses that serve node ports, or \"primary\" (default primary)")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", "127.0.0.1:10249", "address and port of the metrics server; empty to switch it off")
	f.StringVar(&o.healthAddress, "healthz-bind-address", "0.0.0.0:10256", "address and port of the health server; empty to switch it off")
	f.StringVar(&o.table, "table", ruleset.DefaultTable, "name of the nftables tables")
	f.DurationVar(&o.minSyncPeriod, "min-sync-period", proxy.DefaultConfig().MinSyncPeriod, "least time between two syncs; a change after a rest is never held up")
	f.IntVarP(&o.verbosity, "v", "v", 0, "log verbosity; from 2 on every sync is logged")
	return cmd
}

// maxMasqueradeBit is the highest of the 32 bits that a packet's mark has.
const maxMasqueradeBit = 31

// daemon is what the flags describe, checked but not started.
type daemon struct {
	options runOptions
	node    string
	ruleset ruleset.Config
	log     *slog.Logger
}

func (o runOptions) daemon(log *slog.Logger) (*daemon, error) {
	d := &daemon{options: o, log: log}
	if o.manifests != "" && (o.kubeconfig != "" || o.master != "") {
		return nil, fmt.Errorf("--manifests cannot be combined with --kubeconfig or --master")
	}
	if o.minSyncPeriod < 0 {
		return nil, fmt.Errorf("--min-sync-period: %s is negative", o.minSyncPeriod)
	}
	var err error
	if d.node, err = nodeName(o.hostnameOverride); err != nil {
		return nil, err
	}
	if o.masqueradeBit < 0 || o.masqueradeBit > maxMasqueradeBit {
		return nil, fmt.Errorf("--masquerade-bit: %d: want 0 to %d", o.masqueradeBit, maxMasqueradeBit)
	}
	d.ruleset = ruleset.Config{Table: o.table, MasqueradeBit: uint8(o.masqueradeBit)}
	if d.ruleset.ClusterCIDRs, err = parseClusterCIDR(o.clusterCIDR); err != nil {
		return nil, fmt.Errorf("--cluster-cidr: %w", err)
	}
	d.ruleset.MasqueradeAll = o.masqueradeAll
	d.ruleset.NodeCIDR = o.detectLocalMode == detectNodeCIDR
	if d.ruleset.PodInterface, err = o.podInterface(); err != nil {
		return nil, err
	}
	if d.ruleset.NodePortAddresses, err = service.ParseNodePortAddresses(o.nodePortAddresses); err != nil {
		return nil, fmt.Errorf("--nodeport-addresses: %w", err)
	}
	return d, nil
}

// The values of --detect-local-mode, as in kube-proxy.
const (
	detectClusterCIDR     = "ClusterCIDR"
	detectNodeCIDR        = "NodeCIDR"
	detectBridgeInterface = "BridgeInterface"
	detectInterfacePrefix = "InterfaceNamePrefix"
)

// podInterface is where pods' traffic comes in, in the modes that go by that.
func (o runOptions) podInterface() (ruleset.Interface, error) {
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
