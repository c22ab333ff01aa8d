package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"nftproxy/daemon"
	"nftproxy/daemon/health"
	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/daemon/process"
	"nftproxy/daemon/proxy"
	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// ownPrefix begins the name of each flag of run that kube-proxy does not have.
const ownPrefix = "nftproxy-"

// runOptions are the flags of run. A flag that kube-proxy has too has its name.
type runOptions struct {
	sourceOptions
	config configOptions
	// asked has what flags set as they are; run sets the rest.
	asked            daemon.Config
	noMasquerade     []string
	masqueradeBit    int
	counters, eject  string
	dnsTimeouts      string
	flows            string
	sysctls          sysctlOptions
	cleanEstablished []string
	excludeCIDRs     []string
}

// The addresses on which the servers listen by default, as in kube-proxy, and that of the probe server in deploy/.
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
SIGINT ends it. The tables then stay: connections continue, and the next start
writes only what has changed since.`,
		Example: `  nftproxy run --kubeconfig /etc/kubernetes/proxy.conf --cluster-cidr 10.244.0.0/16
  nftproxy run --nftproxy-manifests ./services --hostname-override node-1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := o.config.read()
			if err = errors.Join(err, o.config.checkVersion()); err != nil {
				return usageError{err}
			}
			if o.config.version != "false" {
				return printVersion(cmd, outputText)
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
			c, err := newCommandLine(cmd.Flags()).config(text)
			if err != nil {
				return usageError{err}
			}
			c.Log, c.SetVerbosity = process.NewLogger(os.Stderr, c.LogFormat, c.Verbosity)
			if o.config.initOnly {
				return daemon.Initialise(*c)
			}
			return daemon.Run(cmd.Context(), *c)
		},
	}
	o.addFlags(cmd)
	groupHelp(cmd)
	return cmd
}

func (o *runOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	o.sourceOptions.addFlags(cmd)
	o.config.addFlags(f)
	addIgnoredFlags(f)
	addAliasFlags(f)
	f.StringVar(&o.asked.OOMScoreAdj, "oom-score-adj", "", "`number`, -1000 to 1000: the higher, the sooner the kernel "+
		"ends the process; empty: unchanged")
	f.Lookup("kubeconfig").Usage += "; without it and --master, run uses the pod's service account"
	f.Lookup(ownPrefix + "manifests").Usage += "; run follows their changes"
	f.Lookup("cluster-cidr").Usage += "; run masquerades all other clients"
	f.Lookup(ownPrefix + "table").Usage += "; run removes the tables of earlier runs with other names"
	f.BoolVar(&o.rules.MasqueradeAll, "masquerade-all", false, "masquerade all traffic to cluster IPs")
	f.StringSliceVar(&o.noMasquerade, noMasqueradeFlag, nil, "CIDRs of endpoints whose connections run does not "+
		"masquerade (docs/differences.md#the-source-of-masqueraded-connections)")
	f.BoolVar(&o.rules.MasqueradeToNode, ownPrefix+"masquerade-to-node", false, "masquerade to the Node's first address "+
		"of the family (docs/differences.md#the-source-of-masqueraded-connections)")
	f.BoolVar(&o.rules.AnswerPing, ownPrefix+"answer-ping", false, "answer pings to addresses of Services "+
		"(docs/differences.md#pings)")
	f.StringVar(&o.dnsTimeouts, dnsTimeoutsFlag, timeoutsOff, "default of "+
		"nftproxy.io/udp-timeouts for port 53, such as 10s,30s, or off (docs/choices.md#time-outs)")
	f.IntVar(&o.masqueradeBit, "iptables-masquerade-bit", noMasqueradeBit, "bit of the packet mark, 0 to 31, that marks "+
		"packets to masquerade; -1: none (docs/differences.md#the-mark-does-not-stay-on-packets)")
	f.StringVar(&o.asked.MetricsAddress, "metrics-bind-address", defaultMetricsAddress,
		"address and port of the metrics server; empty to switch it off")
	f.BoolVar(&o.asked.BindHardFail, "bind-address-hard-fail", false, "exit if the health or metrics server cannot "+
		"listen for a minute")
	f.BoolVar(&o.asked.Profiling, "profiling", false, "serve /debug/pprof and /debug/flags/v on the metrics server "+
		"(docs/security.md#listeners)")
	f.StringVar(&o.asked.HealthAddress, "healthz-bind-address", defaultHealthAddress, "address and port of the health "+
		"server; empty to switch it off")
	f.StringVar(&o.asked.ProbeAddress, ownPrefix+"probe-bind-address", "", "address and port of a second health server, "+
		"for probes of this process only; empty to switch it off (docs/security.md#listeners)")
	addTLS(f, "metrics", &o.asked.MetricsTLS)
	addTLS(f, "healthz", &o.asked.HealthTLS)
	f.StringVar(&o.asked.StartupTaint, startupTaintFlag, "", "`key` of a taint that run removes from its Node after its "+
		"first complete rules; empty for none (docs/install.md#no-pod-before-the-rules)")
	f.DurationVar(&o.asked.RetainMissing, ownPrefix+"retain-missing", defaultRetain, "how long run serves Services "+
		"that vanish with most others from the API server's list; 0: not at all "+
		"(docs/differences.md#lists-that-lack-most-services)")
	addCounters(f, &o.counters)
	f.StringVar(&o.eject, ejectFlag, service.EjectReport.String(), "what to do about endpoints that do not "+
		"answer: off, report, or on (leave them out) (docs/eject.md)")
	f.StringVar(&o.flows, flowsFlag, service.FlowsOff.String(), "share of new connections that nftproxy flows shows: off "+
		"or 1/N, such as 1/256 (docs/flows.md)")
	f.BoolVar(&o.asked.DropInvalid, dropInvalidFlag, false, "drop forwarded packets that connection tracking calls "+
		"invalid (docs/migrate.md#what-the-mode-says)")
	addCleanEstablished(f, &o.cleanEstablished)
	o.sysctls.addFlags(f)
	f.DurationVar(&o.asked.MinSyncPeriod, "iptables-min-sync-period", proxy.DefaultConfig().MinSyncPeriod,
		"minimum time between two syncs, on average over 100ms (docs/differences.md#syncs)")
	addExcludeCIDRs(f, &o.excludeCIDRs)
	f.StringVar(&o.asked.LogFormat, logFormatFlag, "", "format of the log: text or json; empty for text on a terminal "+
		"and json elsewhere")
	f.IntVarP(&o.asked.Verbosity, "v", "v", 0, "log verbosity; from 2 on the log has every sync "+
		"(docs/commands.md#other-places-to-look)")
}

// logFormatFlag is kube-proxy's.
const logFormatFlag = "logging-format"

// noMasqueradeFlag is that of the field noMasqueradeCIDRs (KEP-6246).
const noMasqueradeFlag = ownPrefix + "no-masquerade-cidrs"

// dnsTimeoutsFlag takes timeoutsOff to leave the kernel's settings in force.
const (
	dnsTimeoutsFlag = ownPrefix + "dns-udp-timeouts"
	timeoutsOff     = "off"
)

func parseDNSTimeouts(value string) (service.Timeouts, error) {
	if value == timeoutsOff {
		return service.Timeouts{}, nil
	}
	t, err := service.ParseUDPTimeouts(value)
	if err != nil {
		return t, fmt.Errorf("--%s: %q: neither %s nor two times: %w", dnsTimeoutsFlag, value, timeoutsOff, err)
	}
	return t, nil
}

func parseNoMasquerade(words []string) ([]netip.Prefix, error) {
	list, err := parseRanges(words)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", noMasqueradeFlag, err)
	}
	for _, family := range ip.Families() {
		if n := len((&service.Settings{NoMasquerade: list}).NoMasqueradeOf(family)); n > service.MaxNoMasquerade {
			return nil, fmt.Errorf("--%s: %q: %d CIDRs of %s: want at most %d of each family", noMasqueradeFlag, words, n,
				family.Name(), service.MaxNoMasquerade)
		}
	}
	return list, nil
}

// noMasqueradeBit leaves the packets' mark to other programs. maxMasqueradeBit is the highest bit of a mark.
const (
	noMasqueradeBit  = -1
	maxMasqueradeBit = 31
)

// run checks all flags and returns what they ask for. The error joins one for each bad flag.
func (o *runOptions) run() (*daemon.Config, error) {
	var errs []error
	check := func(err error) { errs = append(errs, err) }
	check(notNegative(iptablesPeriod, o.asked.MinSyncPeriod))
	check(notNegative("v", o.asked.Verbosity))
	if known := flagValues()[logFormatFlag]; o.asked.LogFormat != "" && !slices.Contains(known, o.asked.LogFormat) {
		check(unknownValue(logFormatFlag, o.asked.LogFormat))
	}
	for _, a := range [][2]string{{"--healthz-bind-address", o.asked.HealthAddress},
		{"--metrics-bind-address", o.asked.MetricsAddress}, {"--nftproxy-probe-bind-address", o.asked.ProbeAddress}} {
		if err := health.CheckAddress(a[1]); err != nil {
			check(fmt.Errorf("%s: %w", a[0], err))
		}
	}
	check(checkTLS("metrics", o.asked.MetricsTLS))
	check(checkTLS("healthz", o.asked.HealthTLS))
	check(notNegative(ownPrefix+"retain-missing", o.asked.RetainMissing))
	check(o.sysctls.check())
	check(o.checkStartupTaint())
	check(checkCounters(o.counters))
	c := o.asked
	var options service.Options
	if options.Set("eject", o.eject) != nil {
		check(unknownValue(ejectFlag, o.eject))
	}
	c.Eject = options.Eject
	c.Version, c.Source, c.Sysctls, c.SysctlFiles = version(), o.from, o.sysctls.Sysctls, o.sysctls.files()
	c.File, c.FileText, c.Origin, c.ConnectionMetrics = o.config.file, o.config.text, o.config.origin,
		o.counters == countersMetrics
	established, err := cleanEstablished(o.cleanEstablished)
	check(err)
	c.Established = established
	c.Node, c.Rules, err = o.parse()
	check(err)
	switch bit := o.masqueradeBit; {
	case bit < noMasqueradeBit || bit > maxMasqueradeBit:
		check(fmt.Errorf("--iptables-masquerade-bit: %d: want 0 to %d, or %d for none", bit, maxMasqueradeBit,
			noMasqueradeBit))
	case bit != noMasqueradeBit:
		c.Rules.MasqueradeMark = 1 << bit
	}
	check(checkOOMScoreAdj(o.asked.OOMScoreAdj))
	c.ExcludeIPVS, err = parseExcludeCIDRs(o.excludeCIDRs)
	check(err)
	c.Rules.Counters = o.counters != countersNone
	c.Rules.NoMasquerade, err = parseNoMasquerade(o.noMasquerade)
	check(err)
	c.Rules.DNSTimeouts, err = parseDNSTimeouts(o.dnsTimeouts)
	check(err)
	if c.Rules.Flows, err = service.ParseFlows(o.flows); err != nil {
		check(fmt.Errorf("--%s: %q: %w", flowsFlag, o.flows, err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if o.asked.MinSyncPeriod >= time.Second {
		o.config.notes = append(o.config.notes, fmt.Sprintf("changes of Services and endpoints wait up to %s, the least "+
			"time between two syncs (--%s; nftables.minSyncPeriod in a configuration file); without it, %s at most",
			o.asked.MinSyncPeriod, iptablesPeriod, proxy.DefaultConfig().MinSyncPeriod))
	}
	c.Objects = o.claims.watchOptions(ownServers(o.asked.MetricsAddress, o.asked.HealthAddress, o.asked.ProbeAddress))
	c.Notes, c.Mistakes = o.notes(&c), o.config.mistakes
	return &c, nil
}

// notes say what was given and has no effect.
func (o *runOptions) notes(c *daemon.Config) []string {
	notes := slices.Clone(o.config.notes)
	for _, gate := range o.claims.withoutEffect {
		name, _, _ := strings.Cut(gate, "=")
		notes = append(notes, fmt.Sprintf("the feature gate %s has no effect: %s", gate,
			kubeproxyconfig.NoSuchGate(strings.TrimSpace(name))))
	}
	for _, p := range c.Rules.NodePortAddresses.Unserved() {
		notes = append(notes, fmt.Sprintf("nodeport-addresses: %s has no effect: of all loopback addresses, 127.0.0.1 and "+
			"::1 serve node ports", p))
	}
	return notes
}

func checkOOMScoreAdj(score string) error {
	if score == "" {
		return nil
	}
	if n, err := strconv.Atoi(score); err != nil || n < -1000 || n > 1000 {
		return fmt.Errorf("--oom-score-adj: %q: want -1000 to 1000", score)
	}
	return nil
}

// writeDefaults writes kube-proxy's default configuration (--write-config-to).
func writeDefaults(path string) error {
	text, err := kubeproxyconfig.Default()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

const startupTaintFlag = ownPrefix + "startup-taint"

// checkStartupTaint checks the key of a taint; empty stands for none.
func (o *runOptions) checkStartupTaint() error {
	if o.asked.StartupTaint == "" {
		return nil
	}
	if o.from.Manifests != "" {
		return errors.New("--" + startupTaintFlag + ": there is no Node to change with --" + ownPrefix + "manifests")
	}
	if problems := validation.IsQualifiedName(o.asked.StartupTaint); len(problems) > 0 {
		return fmt.Errorf("--%s: %q is not the key of a taint: %s", startupTaintFlag, o.asked.StartupTaint,
			strings.Join(problems, "; "))
	}
	return nil
}

// defaultRetain is the default of --nftproxy-retain-missing: long enough for a restored API
// server to be looked at, and short enough for Services that were really deleted.
const defaultRetain = 5 * time.Minute

const ejectFlag = ownPrefix + "eject"

const flowsFlag = ownPrefix + "flows"

// dropInvalidFlag is that of a rule of kube-proxy's iptables mode.
const dropInvalidFlag = ownPrefix + "drop-invalid"

// The values of --nftproxy-counters.
const (
	countersNone    = "none"
	countersTables  = "tables"
	countersMetrics = "metrics"
)

func addCounters(f *pflag.FlagSet, value *string) {
	const name = ownPrefix + "counters"
	f.StringVar(value, name, countersNone, "count new connections: none, tables (for nftproxy top), or metrics, which "+
		"includes tables (docs/metrics.md)")
	f.Lookup(name).NoOptDefVal = countersTables
}

func checkCounters(value string) error {
	switch value {
	case countersNone, countersTables, countersMetrics:
		return nil
	}
	return unknownValue(ownPrefix+"counters", value)
}

// tlsFlags are the flags of a server's certificate and key. The fields metricsServerTLS and healthzServerTLS of a
// configuration file have the names that KEP-6038 proposes.
func tlsFlags(server string) (certificate, key string) {
	return ownPrefix + server + "-tls-cert-file", ownPrefix + server + "-tls-private-key-file"
}

func addTLS(f *pflag.FlagSet, server string, files *health.Files) {
	certificate, key := tlsFlags(server)
	const more = " (docs/install.md#tls-for-metrics-and-health)"
	f.StringVar(&files.Certificate, certificate, "", "`file` with the certificate of the "+server+" server"+more)
	f.StringVar(&files.Key, key, "", "`file` with the key of that certificate"+more)
}

// checkTLS wants both files or none. Whether they can be used is seen while the process runs: they may come later.
func checkTLS(server string, files health.Files) error {
	certificate, key := tlsFlags(server)
	switch {
	case files.Certificate == "" && files.Key != "":
		return fmt.Errorf("--%s: %q: --%s is empty: want both files or none", key, files.Key, certificate)
	case files.Certificate != "" && files.Key == "":
		return fmt.Errorf("--%s: %q: --%s is empty: want both files or none", certificate, files.Certificate, key)
	}
	return nil
}
