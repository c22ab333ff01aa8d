package main

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"nftproxy/daemon"
	"nftproxy/daemon/kubeproxyconfig"
)

var update = flag.Bool("update", false, "write docs/options.md")

// TestOptionsPage: docs/options.md has every flag of run and every field of kube-proxy's
// configuration file.
func TestOptionsPage(t *testing.T) {
	const path = "../../docs/options.md"
	page := optionsPage(t)
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != page {
		t.Error("docs/options.md is not what the flags say: make golden writes it")
	}
}

func optionsPage(t *testing.T) string {
	var run runOptions
	cmd := &cobra.Command{}
	run.addFlags(cmd)
	f := cmd.Flags()
	reasons := map[string]string{}
	for _, i := range listIgnoredFlags() {
		reasons[i.name] = "no effect: " + i.reason
	}
	fields, ignored := configFields(t)
	b := &strings.Builder{}
	fmt.Fprint(b, `# Options

A test writes this page from the flags of `+"`nftproxy run`"+` (`+"`make golden`"+`).

`+"`nftproxy run`"+` takes every flag of kube-proxy 1.37 on Linux. Flags that kube-proxy does not have begin with `+"`--nftproxy-`"+`. With
`+"`--config`"+`, kube-proxy's configuration file decides, as with kube-proxy: of kube-proxy's flags only `+"`--hostname-override`, `--master`"+`,
`+"`--cleanup`, `--init-only`, `--write-config-to`"+` and those of the log count then. nftproxy's own flags always count. The log names
once what was given and has no effect.

nftproxy follows the file, also when a ConfigMap is swapped. "Live" says that a change of the field counts at once. Other changes
count after a restart; the log and the event `+"`ConfigRestartRequired`"+` of the Node name them. If the file becomes one that cannot be
used, all settings stay, and the log, the event `+"`ConfigInvalid`"+` and the metric `+"`nftproxy_config_file_valid`"+` say so.

## nftproxy's own flags

| Flag | Default | Meaning |
|---|---|---|
`)
	f.VisitAll(func(g *pflag.Flag) {
		if strings.HasPrefix(g.Name, ownPrefix) {
			fmt.Fprintf(b, "| `--%s` | %s | %s |\n", g.Name, defaultText(g), usage(g))
		}
	})
	fmt.Fprint(b, `
## kube-proxy's flags

| Flag | Field of the file | Default | Meaning here |
|---|---|---|---|
`)
	live := daemon.LiveFlags()
	for _, k := range recordedFlags(t) {
		g := f.Lookup(k.name)
		if g == nil {
			t.Fatalf("run does not take --%s", k.name)
		}
		meaning := usage(g)
		if reason, none := reasons[k.name]; none {
			meaning = cell(reason)
		}
		switch k.name {
		case ipvsPeriod:
			meaning = "`--" + iptablesPeriod + "` with `--proxy-mode=ipvs`; else no effect"
		case "healthz-port", "metrics-port":
			meaning = "deprecated: the port of an address without one; 0 switches the server off"
		}
		if slices.Contains(live, k.name) {
			meaning += ". Live"
		}
		if own, differs := ownDefaults()[k.name]; differs && own[0] != k.value && k.value != "" {
			meaning += fmt.Sprintf(". kube-proxy's default is %s: %s", k.value, own[1])
		}
		fmt.Fprintf(b, "| `--%s` | %s | %s | %s |\n", k.name, strings.Join(fields[k.name], ", "), defaultText(g), meaning)
	}
	fmt.Fprint(b, `
## Fields of the file without effect

| Field | Why |
|---|---|
`)
	for _, note := range ignored {
		field, reason, _ := strings.Cut(note, " has no effect: ")
		fmt.Fprintf(b, "| `%s` | %s |\n", field, cell(reason))
	}
	return b.String()
}

// defaultText is a flag's default as a cell of a table.
func defaultText(g *pflag.Flag) string {
	value := strings.Trim(g.DefValue, "[]")
	if value == "" {
		return "none"
	}
	return "`" + value + "`"
}

// usage is a flag's text for --help without the marks around the name of its value.
func usage(g *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(g)
	return cell(text)
}

func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }

// wholeFile sets every field of the file.
const wholeFile = `
featureGates: {AllowServiceExternalIPs: false, Other: true}
clientConnection: {kubeconfig: a, acceptContentTypes: a, contentType: a, qps: 1, burst: 1}
logging: {format: text, flushFrequency: 1s, verbosity: 1, vmodule: [{filePattern: a, verbosity: 1}], options: {text: {splitStream: true, infoBufferSize: 1}, json: {splitStream: true, infoBufferSize: 1}}}
hostnameOverride: a
bindAddress: 192.0.2.1
healthzBindAddress: 192.0.2.1
metricsBindAddress: 192.0.2.1
bindAddressHardFail: true
enableProfiling: true
showHiddenMetricsForVersion: "1.36"
iptables: {masqueradeBit: 1, masqueradeAll: true, localhostNodePorts: true, syncPeriod: 1s, minSyncPeriod: 1s}
ipvs: {syncPeriod: 1s, minSyncPeriod: 1s, scheduler: a, excludeCIDRs: [10.0.0.0/8], strictARP: true, tcpTimeout: 1s, tcpFinTimeout: 1s, udpTimeout: 1s}
nftables: {masqueradeBit: 1, masqueradeAll: true, syncPeriod: 1s, minSyncPeriod: 1s}
winkernel: {networkName: a, sourceVip: a, enableDSR: true, rootHnsEndpointName: a, forwardHealthCheckVip: true}
detectLocalMode: NodeCIDR
detectLocal: {bridgeInterface: a, interfaceNamePrefix: a}
clusterCIDR: 10.0.0.0/8
nodePortAddresses: [primary]
oomScoreAdj: 1
conntrack: {maxPerCore: 1, min: 1, tcpEstablishedTimeout: 1s, tcpCloseWaitTimeout: 1s, tcpBeLiberal: true, udpTimeout: 1s, udpStreamTimeout: 1s}
configSyncPeriod: 1s
portRange: a
windowsRunAsService: true
`

// configFields returns the fields of the file by the flag that means the same, and the
// notes about those without effect. It fails for a field of the type that is neither.
func configFields(t *testing.T) (byFlag map[string][]string, ignored []string) {
	t.Helper()
	byFlag = map[string][]string{}
	known := []string{"mode", "kind", "apiVersion", "featureGates"}
	for _, mode := range []string{"nftables", "iptables", "ipvs"} {
		file, err := kubeproxyconfig.Parse([]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: " + mode + wholeFile))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range file.Settings() {
			if field := "`" + s.Field + "`"; !slices.Contains(byFlag[s.Flag], field) {
				byFlag[s.Flag] = append(byFlag[s.Flag], field)
			}
			known = append(known, s.Field)
		}
		for _, note := range file.Notes {
			field, _, found := strings.Cut(note, " has no effect: ")
			if !found || strings.HasPrefix(field, "featureGates.") || strings.HasPrefix(field, "mode: ") {
				continue
			}
			if !slices.Contains(ignored, note) {
				ignored = append(ignored, note)
			}
			known = append(known, field)
		}
	}
	for _, field := range leaves(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "") {
		if !slices.ContainsFunc(known, func(k string) bool { return field == k || strings.HasPrefix(field, k+".") }) {
			t.Errorf("the field %s is neither a flag nor without effect", field)
		}
	}
	ignored = append([]string{"mode has no effect: nftproxy always programs nftables; the mode says which of the sections iptables, ipvs and nftables counts",
		"featureGates has no effect: but for " + kubeproxyconfig.GateExternalIPs}, ignored...)
	return byFlag, ignored
}

// leaves are the JSON paths of a type's fields that are no structs of fields.
func leaves(of reflect.Type, path string) []string {
	if of.Kind() != reflect.Struct || of.Name() == "Duration" || of.Name() == "QuantityValue" || of.Name() == "TimeOrMetaDuration" {
		return []string{strings.TrimPrefix(path, ".")}
	}
	var list []string
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && field.Anonymous {
			list = append(list, leaves(field.Type, path)...)
			continue
		}
		list = append(list, leaves(field.Type, path+"."+name)...)
	}
	return list
}
