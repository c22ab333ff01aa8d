package main

import (
	"fmt"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
)

// flagGroup is a heading for flags of run in its help and in docs/options.md. Those without effect are in none.
type flagGroup struct {
	name  string
	flags []string
}

// flagGroups has each other flag of run once.
func flagGroups() []flagGroup {
	metricsCertificate, metricsKey := tlsFlags("metrics")
	healthCertificate, healthKey := tlsFlags("healthz")
	return []flagGroup{
		{"configuration", []string{"config", "write-config-to", "init-only", "cleanup", "version"}},
		{"API server", []string{"kubeconfig", "master", ownPrefix + "manifests", "hostname-override",
			ownPrefix + "retain-missing", startupTaintFlag}},
		{"service", []string{ownPrefix + "service-proxy-name", "nodeport-addresses", localhostNodePorts, bindAddress,
			balanceFlag, ipvsScheduler, ejectFlag, ownPrefix + "answer-ping", "feature-gates"}},
		{"limit", []string{ownPrefix + "protected-node-ports", ownPrefix + "max-service-elements",
			ownPrefix + "max-elements", ownPrefix + "max-affinity-ports", ownPrefix + "max-source-lists"}},
		{"pod traffic", []string{"cluster-cidr", "detect-local-mode", "pod-bridge-interface", "pod-interface-name-prefix",
			"masquerade-all", "iptables-masquerade-bit", noMasqueradeFlag, ownPrefix + "masquerade-to-node"}},
		{"connection tracking", []string{"conntrack-max-per-core", "conntrack-min", "conntrack-tcp-timeout-established",
			"conntrack-tcp-timeout-close-wait", "conntrack-tcp-be-liberal", "conntrack-udp-timeout",
			"conntrack-udp-timeout-stream", ownPrefix + "conntrack-sysctl-dir", dnsTimeoutsFlag, cleanEstablishedFlag,
			dropInvalidFlag}},
		{"health and metrics", []string{"healthz-bind-address", "healthz-port", "metrics-bind-address", "metrics-port",
			ownPrefix + "probe-bind-address", "bind-address-hard-fail", healthCertificate, healthKey, metricsCertificate,
			metricsKey, ownPrefix + "counters", flowsFlag, "profiling"}},
		{"table and process", []string{ownPrefix + "table", iptablesPeriod, ipvsPeriod, "ipvs-exclude-cidrs", "oom-score-adj",
			logFormatFlag, "v", "help"}},
	}
}

// groupHelp has the help of run list its flags by groups.
func groupHelp(run *cobra.Command) {
	run.SetUsageFunc(func(cmd *cobra.Command) error {
		cmd.InitDefaultHelpFlag() // A usage may be asked for before cobra adds it.
		var groups cliflag.NamedFlagSets
		for _, g := range flagGroups() {
			set := groups.FlagSet(g.name)
			for _, name := range g.flags {
				set.AddFlag(cmd.Flags().Lookup(name))
			}
		}
		w := cmd.OutOrStderr()
		fmt.Fprintf(w, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		const unwrapped = 0
		cliflag.PrintSections(w, groups, unwrapped)
		return nil
	})
}
