package main

import (
	"encoding/csv"
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

	"nftproxy/daemon"
	"nftproxy/daemon/kubeproxyconfig"
)

// configOptions are the flags of kube-proxy about its configuration as a whole.
type configOptions struct {
	file, writeTo     string
	initOnly, cleanup bool
	version           string
	text              []byte
	// origin names the field of the file that each flag's value came from.
	origin map[string]string
	// notes say what was given and has no effect.
	notes []string
	// mistakes are fields of the file that do not exist.
	mistakes []string
}

func (o *configOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "config", "", "configuration file of kube-proxy; it overrides kube-proxy's other flags "+
		"(docs/install.md#changing-the-configuration)")
	f.StringVar(&o.writeTo, "write-config-to", "", "write kube-proxy's default configuration to this file and exit")
	f.BoolVar(&o.initOnly, "init-only", false, "set the kernel's settings of connection tracking and exit")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove nftproxy's tables and exit, as the command cleanup does")
	f.StringVar(&o.version, "version", "false", "print the version and exit: true, false or raw")
	f.Lookup("version").NoOptDefVal = "true"
}

func (o *configOptions) checkVersion() error {
	if !slices.Contains(flagValues()["version"], o.version) {
		return unknownValue("version", o.version)
	}
	return nil
}

// overFile says whether a flag decides although there is a configuration file: as
// some do with kube-proxy, and nftproxy's own.
func overFile(flag string) bool {
	return strings.HasPrefix(flag, ownPrefix) || strings.HasPrefix(flag, "log-") || slices.Contains([]string{
		"config", "write-config-to", "init-only", "cleanup", "version", "hostname-override", "master",
		"v", "vmodule", logFormatFlag,
	}, flag)
}

// read returns the text of the configuration file; none without --config.
func (o *configOptions) read() ([]byte, error) {
	if o.file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.file)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return text, nil
}

// commandLine has the flags of a command line as they were given, to be read again
// with another text of the configuration file.
type commandLine []string

func newCommandLine(f *pflag.FlagSet, without ...string) commandLine {
	var given commandLine
	f.Visit(func(g *pflag.Flag) {
		if slices.Contains(without, g.Name) {
			return
		}
		value := g.Value.String()
		if list, ok := g.Value.(pflag.SliceValue); ok {
			var text strings.Builder
			w := csv.NewWriter(&text)
			_ = w.Write(list.GetSlice()) // to memory
			w.Flush()
			value = strings.TrimSuffix(text.String(), "\n")
		}
		given = append(given, "--"+g.Name+"="+value)
	})
	return given
}

// config is what the command line and the text of the configuration file
// ask for. Without a text it reads the file. The error joins one for each bad flag or field.
func (c commandLine) config(text []byte) (*daemon.Config, error) {
	var o runOptions
	cmd := &cobra.Command{}
	o.addFlags(cmd)
	if err := cmd.ParseFlags(c); err != nil {
		return nil, err
	}
	if text == nil {
		var err error
		if text, err = o.config.read(); err != nil {
			return nil, err
		}
	}
	o.config.text = text
	bad := o.config.resolve(cmd.Flags(), text)
	config, err := o.run()
	if err = errors.Join(bad, o.config.rename(err)); err != nil {
		return nil, err
	}
	config.Parse, config.Flags = c.config, map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { config.Flags[f.Name] = f.Value.String() })
	return config, nil
}

// resolve gives each flag the value that counts: kube-proxy's deprecated flags, and the
// configuration file with the text, stand for flags too.
func (o *configOptions) resolve(f *pflag.FlagSet, text []byte) error {
	o.origin = map[string]string{}
	if o.file == "" {
		o.notes = append(o.notes, ignoredFlags(f)...)
		for _, note := range []string{ignoredPeriod(f), resolveScheduler(f), resolveNodePorts(f)} {
			if note != "" {
				o.notes = append(o.notes, note)
			}
		}
		if to := f.Lookup(dropInvalidFlag); f.Lookup("proxy-mode").Value.String() == "iptables" && !to.Changed {
			_ = to.Value.Set("true") // kube-proxy's rule of that mode
		}
		return errors.Join(resolveMode(f), resolvePorts(f), resolvePeriod(f))
	}
	file, bad := kubeproxyconfig.Parse(text)
	if bad != nil {
		bad = fmt.Errorf("--config: %s: %w", o.file, bad)
	}
	if file == nil {
		return bad
	}
	f.Visit(func(g *pflag.Flag) {
		if !overFile(g.Name) {
			o.notes = append(o.notes, fmt.Sprintf("--%s has no effect: the configuration file decides", g.Name))
			resetFlag(g)
		}
	})
	o.notes = append(o.notes, ignoredFlags(f)...)
	o.notes, o.mistakes = append(o.notes, file.Notes...), file.Mistakes
	for _, s := range file.Settings() {
		g := f.Lookup(s.Flag)
		if g.Changed && overFile(s.Flag) || s.Flag == "kubeconfig" && f.Changed(ownPrefix+"manifests") {
			continue // --nftproxy-manifests stands for an API server
		}
		if err := g.Value.Set(s.Value); err != nil {
			bad = errors.Join(bad, fmt.Errorf("--config: %s: %s: %q: %w", o.file, s.Field, s.Value, err))
		}
		o.origin[s.Flag] = s.Field
	}
	return bad
}

func resetFlag(g *pflag.Flag) {
	if list, ok := g.Value.(pflag.SliceValue); ok {
		var words []string
		if text := strings.Trim(g.DefValue, "[]"); text != "" {
			words = strings.Split(text, ",")
		}
		_ = list.Replace(words) // the default was a valid list
		return
	}
	_ = g.Value.Set(g.DefValue)
}

// rename names the field of the file in an error about a flag that has its value
// from there: errors begin with the flag.
func (o *configOptions) rename(err error) error {
	var list []error
	for _, e := range flatten(err) {
		for flag, field := range o.origin {
			if rest, found := strings.CutPrefix(e.Error(), "--"+flag+":"); found {
				e = fmt.Errorf("--config: %s: %s:%s", o.file, field, rest)
				break
			}
		}
		list = append(list, e)
	}
	return errors.Join(list...)
}

// flatten lists what errors.Join has put together.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var list []error
	for _, e := range joined.Unwrap() {
		list = append(list, flatten(e)...)
	}
	return list
}

// ignoredFlag is a flag of kube-proxy that has no effect here: its default, with
// the type that the flag has there, and why it has no effect.
type ignoredFlag struct {
	name   string
	value  any
	reason string
}

const (
	nftablesOnly = "nftproxy always programs nftables; the mode says what other flags mean"
	repairs      = "nftproxy follows changes and repairs what others change"
	oneLog       = "nftproxy's log is one stream without a buffer, of one verbosity"
	noLimit      = "nftproxy asks for protobuf and has no limit of its own"
)

// listIgnoredFlags lists the flags of kube-proxy 1.37 on Linux that have no effect here.
func listIgnoredFlags() []ignoredFlag {
	return []ignoredFlag{
		{"proxy-mode", "", nftablesOnly},
		{"kube-api-content-type", "application/vnd.kubernetes.protobuf", noLimit},
		{"kube-api-qps", float32(5), noLimit},
		{"kube-api-burst", 10, noLimit},
		{"config-sync-period", 15 * time.Minute, "nftproxy gets each change from its watches"},
		{"show-hidden-metrics-for-version", "", "nftproxy hides no metrics"},
		{"iptables-sync-period", 30 * time.Second, repairs},
		{"ipvs-sync-period", 30 * time.Second, repairs},
		{"ipvs-strict-arp", false, kubeproxyconfig.NoteStrictARP},
		{"ipvs-tcp-timeout", time.Duration(0), kubeproxyconfig.NoteTCPTimeout},
		{"ipvs-tcpfin-timeout", time.Duration(0), kubeproxyconfig.NoteTCPFinTimeout},
		{"ipvs-udp-timeout", time.Duration(0), kubeproxyconfig.NoteUDPTimeout},
		{"vmodule", "", oneLog},
		{"log-flush-frequency", 5 * time.Second, oneLog},
		{"log-text-split-stream", false, oneLog},
		{"log-json-split-stream", false, oneLog},
		{"log-text-info-buffer-size", "0", oneLog},
		{"log-json-info-buffer-size", "0", oneLog},
	}
}

// addHiddenFlag accepts a flag that --help does not list, with its default.
func addHiddenFlag(f *pflag.FlagSet, name string, value any) {
	switch value := value.(type) {
	case string:
		f.String(name, value, "")
	case bool:
		f.Bool(name, value, "")
	case int:
		f.Int(name, value, "")
	case float32:
		f.Float32(name, value, "")
	case time.Duration:
		f.Duration(name, value, "")
	}
	_ = f.MarkHidden(name) // it was just added
}

func addIgnoredFlags(f *pflag.FlagSet) {
	for _, i := range listIgnoredFlags() {
		addHiddenFlag(f, i.name, i.value)
	}
}

// ignoredFlags says of the ignored flags that were given why they have no effect. It
// leaves out those that a configuration file overrides.
func ignoredFlags(f *pflag.FlagSet) []string {
	var notes []string
	for _, i := range listIgnoredFlags() {
		g := f.Lookup(i.name)
		if !g.Changed || !overFile(i.name) && f.Lookup("config").Value.String() != "" || i.name == "proxy-mode" &&
			g.Value.String() == "nftables" {
			continue
		}
		notes = append(notes, fmt.Sprintf("--%s has no effect: %s", i.name, i.reason))
	}
	return notes
}

// addAliasFlags accepts flags of kube-proxy whose setting has another name here.
func addAliasFlags(f *pflag.FlagSet) {
	addHiddenFlag(f, ipvsPeriod, time.Second)
	addHiddenFlag(f, ipvsScheduler, "")
	addHiddenFlag(f, localhostNodePorts, true)
	addHiddenFlag(f, bindAddress, "0.0.0.0")
	addHiddenFlag(f, "healthz-port", 10256)
	addHiddenFlag(f, "metrics-port", 10249)
}

// resolveMode checks --proxy-mode and --bind-address. An IPv6 bind address makes the servers listen on IPv6 addresses
// where nothing else was asked for, as in kube-proxy.
func resolveMode(f *pflag.FlagSet) error {
	if mode := f.Lookup("proxy-mode").Value.String(); !kubeproxyconfig.IsMode(mode) {
		return unknownValue("proxy-mode", mode, "nothing")
	}
	bind := f.Lookup(bindAddress).Value.String()
	if _, err := netip.ParseAddr(bind); err != nil {
		return fmt.Errorf("--%s: %q is not an IP address", bindAddress, bind)
	}
	healthz, metrics := kubeproxyconfig.ServerAddresses(bind)
	for flag, address := range map[string]string{"healthz-bind-address": healthz, "metrics-bind-address": metrics} {
		if g := f.Lookup(flag); !g.Changed {
			_ = g.Value.Set(address) // any text will do
		}
	}
	return nil
}

// The flags with the least time between two syncs, by kube-proxy's mode.
const (
	iptablesPeriod = "iptables-min-sync-period"
	ipvsPeriod     = "ipvs-min-sync-period"
)

const ipvsScheduler = "ipvs-scheduler"

// resolveScheduler has --ipvs-scheduler stand for a balance with --proxy-mode=ipvs, where none is given. It returns a
// note about it, or an empty one.
func resolveScheduler(f *pflag.FlagSet) string {
	scheduler, to := f.Lookup(ipvsScheduler), f.Lookup(balanceFlag)
	if scheduler.Value.String() != "" && f.Lookup("proxy-mode").Value.String() != "ipvs" {
		return "--" + ipvsScheduler + " has no effect: --proxy-mode is not ipvs"
	}
	if balance := kubeproxyconfig.SchedulerBalance(scheduler.Value.String()); balance != "" && !to.Changed {
		_ = to.Value.Set(balance) // any text will do
	}
	return kubeproxyconfig.SchedulerNote("--"+ipvsScheduler, scheduler.Value.String())
}

// localhostNodePorts is about --proxy-mode=iptables. bindAddress is one of the primary addresses.
const (
	localhostNodePorts = "iptables-localhost-nodeports"
	bindAddress        = "bind-address"
)

// resolveNodePorts has --nodeport-addresses mean what it does in kube-proxy's mode, where --proxy-mode names one.
// Without it, an empty list means the node's primary addresses. It returns a note about --iptables-localhost-nodeports,
// or an empty one.
func resolveNodePorts(f *pflag.FlagSet) string {
	mode, to := f.Lookup("proxy-mode").Value.String(), f.Lookup("nodeport-addresses").Value.(pflag.SliceValue)
	localhost := f.Lookup(localhostNodePorts)
	if mode != "" {
		_ = to.Replace(kubeproxyconfig.NodePortAddresses(mode, to.GetSlice(), localhost.Value.String() == "true")) // texts
	}
	_ = to.Replace(kubeproxyconfig.PrimaryAt(f.Lookup(bindAddress).Value.String(), to.GetSlice())) // texts
	if localhost.Changed && mode != "iptables" {
		return "--" + localhostNodePorts + " has no effect: --proxy-mode is not iptables"
	}
	return ""
}

// ignoredPeriod returns a note that the one of the mode that is not used has no effect, or an empty one.
func ignoredPeriod(f *pflag.FlagSet) string {
	unused, mode := ipvsPeriod, "--"+iptablesPeriod+" counts"
	if f.Lookup("proxy-mode").Value.String() == "ipvs" {
		unused, mode = iptablesPeriod, "with --proxy-mode=ipvs, --"+ipvsPeriod+" counts"
	}
	if f.Changed(unused) {
		return fmt.Sprintf("--%s has no effect: %s", unused, mode)
	}
	return ""
}

// resolvePeriod takes --ipvs-min-sync-period with --proxy-mode=ipvs, and
// --iptables-min-sync-period with every other mode, as kube-proxy does.
func resolvePeriod(f *pflag.FlagSet) error {
	if f.Lookup("proxy-mode").Value.String() != "ipvs" {
		return nil
	}
	from, to := f.Lookup(ipvsPeriod), f.Lookup(iptablesPeriod)
	resetFlag(to)
	if !from.Changed {
		return nil
	}
	if err := to.Value.Set(from.Value.String()); err != nil {
		return fmt.Errorf("--%s: %w", ipvsPeriod, err)
	}
	return nil
}

// resolvePorts adds the ports of kube-proxy's deprecated --healthz-port and
// --metrics-port to addresses without one. 0 switches the server off.
func resolvePorts(f *pflag.FlagSet) error {
	for flag, address := range map[string]string{"healthz-port": "healthz-bind-address",
		"metrics-port": "metrics-bind-address"} {
		g, to := f.Lookup(flag), f.Lookup(address)
		port, value := g.Value.String(), ""
		switch n, _ := strconv.Atoi(port); {
		case n < 0 || n > 65535:
			return fmt.Errorf("--%s: %s: want a port, 0 to 65535", flag, port)
		case n > 0:
			value = kubeproxyconfig.WithPort(to.Value.String(), n)
		}
		_ = to.Value.Set(value) // any text will do
	}
	return nil
}
