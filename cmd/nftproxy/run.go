package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"nftproxy/internal/proxy"
	"nftproxy/internal/service"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// runOptions are the flags of run, under kube-proxy's names where it has them.
type runOptions struct {
	sourceOptions
	masqueradeAll                 bool
	masqueradeBit                 int
	metricsAddress, healthAddress string
	sysctls                       sysctlOptions
	cleanEstablished              []string
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
	o.addFlags(cmd)
	f.Lookup("kubeconfig").Usage += "; without it and --master the pod's service account is used"
	f.BoolVar(&o.masqueradeAll, "masquerade-all", false, "masquerade everything that goes to a cluster IP")
	f.IntVar(&o.masqueradeBit, "masquerade-bit", ruleset.DefaultMasqueradeBit, "bit of the packet mark, 0 to 31, that says inside the node what to masquerade")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", "127.0.0.1:10249", "address and port of the metrics server; empty to switch it off")
	f.StringVar(&o.healthAddress, "healthz-bind-address", "0.0.0.0:10256", "address and port of the health server; empty to switch it off")
	addCleanEstablished(f, &o.cleanEstablished)
	o.sysctls.addFlags(f)
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
	// established has the protocols whose connections to endpoints that have
	// gone are cut.
	established []service.Protocol
	log         *slog.Logger
	// record writes an event; run sets it.
	record func(watch.Event)
}

func (o runOptions) daemon(log *slog.Logger) (*daemon, error) {
	d := &daemon{options: o, log: log}
	if o.minSyncPeriod < 0 {
		return nil, fmt.Errorf("--min-sync-period: %s is negative", o.minSyncPeriod)
	}
	if err := o.sysctls.check(); err != nil {
		return nil, err
	}
	var err error
	if d.established, err = cleanEstablished(o.cleanEstablished); err != nil {
		return nil, err
	}
	if d.node, d.ruleset, err = o.parse(); err != nil {
		return nil, err
	}
	if o.masqueradeBit < 0 || o.masqueradeBit > maxMasqueradeBit {
		return nil, fmt.Errorf("--masquerade-bit: %d: want 0 to %d", o.masqueradeBit, maxMasqueradeBit)
	}
	d.ruleset.MasqueradeAll, d.ruleset.MasqueradeBit = o.masqueradeAll, uint8(o.masqueradeBit)
	return d, nil
}
