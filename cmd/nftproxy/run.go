package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nftproxy/daemon/health"
	"nftproxy/daemon/process"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// ownPrefix begins the name of each flag of run that kube-proxy does not have.
const ownPrefix = "nftproxy-"

// runOptions are the flags of run. A flag that kube-proxy has too has its name.
type runOptions struct {
	sourceOptions
	config                        configOptions
	masqueradeAll                 bool
	masqueradeBit                 int
	metricsAddress, healthAddress string
	probeAddress                  string
	startupTaint                  string
	counters                      string
	retainMissing                 time.Duration
	sysctls                       sysctlOptions
	cleanEstablished              []string
	minSyncPeriod                 time.Duration
	verbosity                     int
	oomScoreAdj                   string
	profiling, bindHardFail       bool
}

// The addresses on which the servers listen by default, as in kube-proxy, and that of
// the probe server in deploy/.
const (
	defaultMetricsAddress = "127.0.0.1:10249"
	defaultHealthAddress  = "0.0.0.0:10256"
	defaultProbeAddress   = "127.0.0.1:10266"
)

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve this node's Services: keep its nftables tables up to date",
		Long: `run follows Services and EndpointSlices, from the API server or from manifests,
and keeps the tables "ip nftproxy" and "ip6 nftproxy" up to date. SIGTERM or
SIGINT ends it. The tables stay then: connections go on, and the next start
writes only the changes since.`,
		Example: `  nftproxy run --kubeconfig /etc/kubernetes/proxy.conf --cluster-cidr 10.244.0.0/16
  nftproxy run --nftproxy-manifests ./services --hostname-override node-1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := o.config.read()
			if err = errors.Join(err, o.config.checkVersion()); err != nil {
				return usageError{err}
			}
			if o.config.version != "false" {
				return printVersion(cmd)
			}
			if o.config.cleanup {
				return cleanupTables(cmd, o.table)
			}
			if o.config.writeTo != "" {
				if err := writeDefaults(o.config.writeTo); err != nil {
					return usageError{err}
				}
				return nil
			}
			d, err := newCommandLine(cmd.Flags()).daemon(text)
			if err != nil {
				return usageError{err}
			}
			d.log, d.setVerbosity = process.NewLogger(os.Stderr, d.options.verbosity)
			if o.config.initOnly {
				return d.initialise()
			}
			return d.run(cmd.Context())
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *runOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	o.sourceOptions.addFlags(cmd)
	o.config.addFlags(f)
	addIgnoredFlags(f)
	addAliasFlags(f)
	f.StringVar(&o.oomScoreAdj, "oom-score-adj", "", "`number`, -1000 to 1000: the higher, the sooner the kernel ends the process when memory runs out; empty leaves it alone")
	f.Lookup("kubeconfig").Usage += "; without it and --master, run uses the pod's service account"
	f.Lookup(ownPrefix + "manifests").Usage += "; run follows their changes"
	f.Lookup("cluster-cidr").Usage += "; run masquerades traffic from all other addresses to cluster IPs"
	f.Lookup(ownPrefix + "table").Usage += "; run removes the tables of earlier runs with other names"
	f.BoolVar(&o.masqueradeAll, "masquerade-all", false, "masquerade all traffic to cluster IPs")
	f.IntVar(&o.masqueradeBit, "iptables-masquerade-bit", noMasqueradeBit, "bit of the packet mark, 0 to 31, that says inside the node which packets are to be masqueraded, for other programs that set or read it; -1: the rules neither read nor change marks, and connection tracking remembers it")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", defaultMetricsAddress, "address and port of the metrics server; empty to switch it off")
	f.BoolVar(&o.bindHardFail, "bind-address-hard-fail", false, "end where the health or metrics server cannot listen for a minute")
	f.BoolVar(&o.profiling, "profiling", false, "serve /debug/pprof and /debug/flags/v on the metrics server: who can reach it sees the memory of the process")
	f.StringVar(&o.healthAddress, "healthz-bind-address", defaultHealthAddress, "address and port of the health server; empty to switch it off")
	f.StringVar(&o.probeAddress, ownPrefix+"probe-bind-address", "", "address and port of a second health server, for probes that must reach this process and no other; run ends if another process has it; empty to switch it off")
	f.StringVar(&o.startupTaint, startupTaintFlag, "", "`key` of a taint that run removes from its own Node once the first program is in force in both families; empty for none")
	f.DurationVar(&o.retainMissing, ownPrefix+"retain-missing", defaultRetain, "how long Services are served on that a list of the API server lacks, or whose EndpointSlices it lacks, where it lacks more than half of them and at least 10, as after a restore; what it has counts at once; 0 removes all of them at once")
	addCounters(f, &o.counters)
	addCleanEstablished(f, &o.cleanEstablished)
	o.sysctls.addFlags(f)
	f.DurationVar(&o.minSyncPeriod, "iptables-min-sync-period", proxy.DefaultConfig().MinSyncPeriod, "least time between two syncs, on average over 100ms; a change after a longer rest does not wait")
	f.IntVarP(&o.verbosity, "v", "v", 0, "log verbosity; from 2 on the log has every sync, below 2 the number of lines with the same message is bounded")
}

// noMasqueradeBit leaves the packets' mark to other programs. maxMasqueradeBit is the highest bit of
// a mark.
const (
	noMasqueradeBit  = -1
	maxMasqueradeBit = 31
)

// daemon is the proxy that the flags describe. The flags are checked; run starts it.
type daemon struct {
	options runOptions
	node    string
	ruleset ruleset.Config
	// established has the protocols of which even established connections are
	// stale when their endpoint is gone.
	established []service.Protocol
	log         *slog.Logger
	// flags are those of the command line and of the configuration file; setVerbosity
	// is --v while the process runs. The command sets both.
	flags        *pflag.FlagSet
	setVerbosity func(int)
	// live has the flags that a change of the configuration file has changed since the
	// start; nil before the first change.
	live *atomic.Pointer[map[string]string]
	// wanted has the kernel's settings that are wanted now.
	wanted *atomic.Pointer[sysctlOptions]
	// keeper is the name of the socket by which this process keeps its tables. run sets it.
	keeper string
	// record writes an event to the API server. run sets it.
	record func(watch.Event)
}

// daemon checks all flags and joins an error for each bad one.
func (o runOptions) daemon() (*daemon, error) {
	d := daemon{live: new(atomic.Pointer[map[string]string]), wanted: new(atomic.Pointer[sysctlOptions])}
	d.wanted.Store(&o.sysctls)
	var errs []error
	check := func(err error) { errs = append(errs, err) }
	if o.minSyncPeriod < 0 {
		check(fmt.Errorf("--iptables-min-sync-period: %s is negative", o.minSyncPeriod))
	}
	if o.verbosity < 0 {
		check(fmt.Errorf("--v: %d is negative", o.verbosity))
	}
	for _, c := range [][2]string{{"--healthz-bind-address", o.healthAddress}, {"--metrics-bind-address", o.metricsAddress}, {"--nftproxy-probe-bind-address", o.probeAddress}} {
		if err := health.CheckAddress(c[1]); err != nil {
			check(fmt.Errorf("%s: %w", c[0], err))
		}
	}
	if o.retainMissing < 0 {
		check(fmt.Errorf("--%sretain-missing: %s is negative", ownPrefix, o.retainMissing))
	}
	check(o.sysctls.check())
	check(o.checkStartupTaint())
	check(checkCounters(o.counters))
	var err error
	d.established, err = cleanEstablished(o.cleanEstablished)
	check(err)
	d.node, d.ruleset, err = o.parse()
	check(err)
	switch bit := o.masqueradeBit; {
	case bit < noMasqueradeBit || bit > maxMasqueradeBit:
		check(fmt.Errorf("--iptables-masquerade-bit: %d: want 0 to %d, or %d for none", bit, maxMasqueradeBit, noMasqueradeBit))
	case bit != noMasqueradeBit:
		d.ruleset.MasqueradeMark = 1 << bit
	}
	check(checkOOMScoreAdj(o.oomScoreAdj))
	d.ruleset.Counters = o.counters != countersNone
	d.ruleset.MasqueradeAll = o.masqueradeAll
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if o.minSyncPeriod > time.Second {
		o.config.notes = append(o.config.notes, fmt.Sprintf("changes of Services and endpoints wait up to %s, the least time between two syncs (--%s; nftables.minSyncPeriod in a configuration file); without it, %s at most",
			o.minSyncPeriod, iptablesPeriod, proxy.DefaultConfig().MinSyncPeriod))
	}
	// The options have what was parsed of them only now.
	d.options = o
	return &d, nil
}
