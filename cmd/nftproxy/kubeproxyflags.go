package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"nftproxy/daemon/kubeproxyconfig"
)

// ignoredFlag is a flag of kube-proxy that has no effect here: its default, with
// the type that the flag has there, and why it has no effect.
type ignoredFlag struct {
	name   string
	value  any
	reason string
}

const (
	nftablesOnly = "nftproxy always programs nftables"
	noIPVS       = "nftproxy does not use IPVS"
	repairs      = "nftproxy follows changes and repairs what others change"
	oneLog       = "nftproxy logs JSON, or text on a terminal, at one verbosity"
	noLimit      = "nftproxy asks for protobuf and has no limit of its own"
)

// listIgnoredFlags lists the flags of kube-proxy 1.37 on Linux that have no effect
// here.
func listIgnoredFlags() []ignoredFlag {
	return []ignoredFlag{
		{"proxy-mode", "", nftablesOnly},
		{"bind-address", "0.0.0.0", "the node's primary addresses are those of its Node object"},
		{"kube-api-content-type", "application/vnd.kubernetes.protobuf", noLimit},
		{"kube-api-qps", float32(5), noLimit},
		{"kube-api-burst", 10, noLimit},
		{"config-sync-period", 15 * time.Minute, "nftproxy has each change from its watches"},
		{"show-hidden-metrics-for-version", "", "nftproxy hides no metrics"},
		{"iptables-sync-period", 30 * time.Second, repairs},
		{"iptables-localhost-nodeports", true, nftablesOnly},
		{"ipvs-sync-period", 30 * time.Second, noIPVS},
		{"ipvs-scheduler", "", noIPVS},
		{"ipvs-exclude-cidrs", []string(nil), noIPVS},
		{"ipvs-strict-arp", false, noIPVS},
		{"ipvs-tcp-timeout", time.Duration(0), noIPVS},
		{"ipvs-tcpfin-timeout", time.Duration(0), noIPVS},
		{"ipvs-udp-timeout", time.Duration(0), noIPVS},
		{"vmodule", "", oneLog},
		{"logging-format", "text", oneLog},
		{"log-flush-frequency", 5 * time.Second, oneLog},
		{"log-text-split-stream", false, oneLog},
		{"log-json-split-stream", false, oneLog},
		{"log-text-info-buffer-size", "0", oneLog},
		{"log-json-info-buffer-size", "0", oneLog},
	}
}

// addIgnoredFlags accepts the ignored flags. --help does not list them.
func addIgnoredFlags(f *pflag.FlagSet) {
	for _, i := range listIgnoredFlags() {
		switch value := i.value.(type) {
		case string:
			f.String(i.name, value, "")
		case bool:
			f.Bool(i.name, value, "")
		case int:
			f.Int(i.name, value, "")
		case float32:
			f.Float32(i.name, value, "")
		case time.Duration:
			f.Duration(i.name, value, "")
		case []string:
			f.StringSlice(i.name, value, "")
		}
		_ = f.MarkHidden(i.name) // it was just added
	}
}

// ignoredFlags says of the ignored flags that were given why they have no effect. It
// leaves out those that a configuration file overrides.
func ignoredFlags(f *pflag.FlagSet) []string {
	var notes []string
	for _, i := range listIgnoredFlags() {
		g := f.Lookup(i.name)
		if g.Changed && (overFile(i.name) || f.Lookup("config").Value.String() == "") && !(i.name == "proxy-mode" && g.Value.String() == "nftables") {
			notes = append(notes, fmt.Sprintf("--%s has no effect: %s", i.name, i.reason))
		}
	}
	return notes
}

// addAliasFlags accepts flags of kube-proxy whose setting has another name here.
func addAliasFlags(f *pflag.FlagSet) {
	f.Duration(ipvsPeriod, time.Second, "")
	f.Int("healthz-port", 10256, "")
	f.Int("metrics-port", 10249, "")
	for _, name := range []string{ipvsPeriod, "healthz-port", "metrics-port"} {
		_ = f.MarkHidden(name) // each was just added
	}
}

// resolveMode checks --proxy-mode and --bind-address. An IPv6 bind address makes
// the servers listen on IPv6 addresses where nothing else was asked for, as in
// kube-proxy.
func resolveMode(f *pflag.FlagSet) error {
	if mode := f.Lookup("proxy-mode").Value.String(); !kubeproxyconfig.IsMode(mode) {
		return fmt.Errorf("--proxy-mode: %q: want iptables, ipvs, nftables or nothing", mode)
	}
	bind := f.Lookup("bind-address").Value.String()
	if _, err := netip.ParseAddr(bind); err != nil {
		return fmt.Errorf("--bind-address: %q is not an IP address", bind)
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

// ignoredPeriod says that the one of the mode that is not used has no effect.
func ignoredPeriod(f *pflag.FlagSet) []string {
	unused, mode := ipvsPeriod, "--"+iptablesPeriod+" counts"
	if f.Lookup("proxy-mode").Value.String() == "ipvs" {
		unused, mode = iptablesPeriod, "with --proxy-mode=ipvs, --"+ipvsPeriod+" counts"
	}
	if f.Changed(unused) {
		return []string{fmt.Sprintf("--%s has no effect: %s", unused, mode)}
	}
	return nil
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
	for flag, address := range map[string]string{"healthz-port": "healthz-bind-address", "metrics-port": "metrics-bind-address"} {
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
