package main

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"nftproxy/daemon"
	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/model/service"
	"nftproxy/watch"
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
		reasons[i.name] = i.reason
	}
	fields, ignored := configFields(t)
	b := &strings.Builder{}
	fmt.Fprint(b, `# Options

This page lists the flags of `+"`nftproxy run`"+` and the fields of kube-proxy's configuration file.

`+"`nftproxy run`"+` accepts every flag of kube-proxy 1.37 on Linux. Its own flags begin with `+"`--nftproxy-`"+`.
With `+"`--config`"+`, kube-proxy's configuration file decides, as with kube-proxy. Of kube-proxy's flags only
`+"`--hostname-override`, `--master`, `--cleanup`, `--init-only`, `--write-config-to`"+` and those of the log
then have an effect. The log names flags and fields that are set and have none.

nftproxy reads the file again [when it changes](install.md#changing-the-configuration). An asterisk marks
fields whose changes take effect without a restart.
`)
	live := daemon.LiveFlags()
	var idle byReason
	theirs := map[string]string{}
	for _, k := range recordedFlags(t) {
		if theirs[k.name] = k.value; reasons[k.name] != "" {
			idle.add(reasons[k.name], "--"+k.name)
		}
	}
	row := func(g *pflag.Flag) {
		meaning := usage(g)
		switch g.Name {
		case iptablesPeriod:
			meaning += ". The field has an effect below 1 s and above 10 s only"
		case "feature-gates":
			meaning += ". If it is false, run ignores `spec.externalIPs`"
		case ipvsPeriod:
			meaning = "`--" + iptablesPeriod + "` with `--proxy-mode=ipvs`; else no effect"
		case ipvsScheduler:
			fields[g.Name] = fields[balanceFlag]
			meaning = "with `--proxy-mode=ipvs`, sh and dh stand for `--nftproxy-balance=client`, and mh for `flow`, unless " +
				"that flag is given; rr and wrr are what nftproxy does, and the others have no effect " +
				"([differences.md](differences.md#schedulers-of-ipvs))"
		case "nodeport-addresses":
			meaning += ". `primary` is the node's first address of each family, `localhost` 127.0.0.1 and ::1. An empty list " +
				"means what it does in kube-proxy's mode ([migrate.md](migrate.md#what-the-mode-says))"
		case localhostNodePorts:
			fields[g.Name] = []string{"`iptables.localhostNodePorts`"}
			meaning = "with `--proxy-mode=iptables`, `--nodeport-addresses` stands for 127.0.0.1 too if it is empty or has " +
				"all addresses; else no effect"
		case bindAddress:
			fields[g.Name] = []string{"`bindAddress`"}
			meaning = "a primary address besides those of the Node, for `--nodeport-addresses`; an IPv6 address moves the " +
				"default addresses of the health and metrics servers to IPv6"
		case "healthz-port", "metrics-port":
			meaning = "deprecated: the port of an address without one; 0 switches the server off"
		}
		field := strings.Join(fields[g.Name], ", ")
		switch {
		case strings.HasPrefix(g.Name, ownPrefix):
			field = ownFields()[g.Name]
		case slices.Contains(live, g.Name) || g.Name == localhostNodePorts:
			field = strings.Join(fields[g.Name], `\*, `) + `\*`
		}
		if own, differs := ownDefaults()[g.Name]; differs && own[0] != theirs[g.Name] && theirs[g.Name] != "" {
			meaning += fmt.Sprintf(". kube-proxy's default is %s: %s", theirs[g.Name], own[1])
		}
		fmt.Fprintf(b, "| `--%s` | %s | %s | %s |\n", g.Name, field, defaultText(g), meaning)
	}
	for _, group := range flagGroups() {
		fmt.Fprintf(b, "\n## %s flags\n\n| Flag | Field | Default | Meaning |\n|---|---|---|---|\n",
			strings.ToUpper(group.name[:1])+group.name[1:])
		for _, name := range slices.Sorted(slices.Values(group.flags)) {
			if name != "help" {
				row(f.Lookup(name))
			}
		}
	}
	for _, note := range ignored {
		field, reason, _ := strings.Cut(note, " has no effect: ")
		idle.add(reason, field)
	}
	fmt.Fprintf(b, "\n## Flags and fields without effect\n\n| Flags and fields | Why |\n|---|---|\n%s", idle.rows())
	return b.String()
}

// TestFlagGroups: each flag of run stands in its help once, in a group, or has no effect and is not there; and so does
// each in the page.
func TestFlagGroups(t *testing.T) {
	var help bytes.Buffer
	if code := execute(t.Context(), []string{"run", "--help"}, &help, &help); code != 0 {
		t.Fatal(help.String())
	}
	page := optionsPage(t)
	grouped := map[string]int{}
	for _, g := range flagGroups() {
		for _, name := range g.flags {
			grouped[name]++
		}
		title := strings.ToUpper(g.name[:1]) + g.name[1:] + " flags"
		if !strings.Contains(help.String(), "\n"+title+":\n") || !strings.Contains(page, "\n## "+title+"\n") {
			t.Errorf("the help or the page has no %q", title)
		}
	}
	var run runOptions
	cmd := &cobra.Command{}
	run.addFlags(cmd)
	for _, i := range listIgnoredFlags() {
		grouped[i.name]++
	}
	cmd.Flags().VisitAll(func(g *pflag.Flag) {
		if grouped[g.Name] != 1 {
			t.Errorf("--%s stands in %d groups, or has no effect", g.Name, grouped[g.Name])
		}
		want := 1
		if g.Hidden {
			want = 0
		}
		line := regexp.MustCompile(`(?m)^ +(-\w, )?--` + regexp.QuoteMeta(g.Name) + `( |\[)`)
		if n := len(line.FindAllString(help.String(), -1)); n != want {
			t.Errorf("the help has --%s %d times, want %d", g.Name, n, want)
		}
		if rows := strings.Count(page, "`--"+g.Name+"` |") + strings.Count(page, "`--"+g.Name+"`, "); rows == 0 {
			t.Errorf("docs/options.md has no --%s", g.Name)
		}
	})
}

// byReason are names by the reason that they share.
type byReason struct {
	reasons []string
	names   map[string][]string
}

func (r *byReason) add(reason, name string) {
	if r.names == nil {
		r.names = map[string][]string{}
	}
	if !slices.Contains(r.reasons, reason) {
		r.reasons = append(r.reasons, reason)
	}
	r.names[reason] = append(r.names[reason], name)
}

// rows are the rows of a table, each of a reason and its names.
func (r *byReason) rows() string {
	b := &strings.Builder{}
	for _, reason := range r.reasons {
		names := "`" + strings.Join(r.names[reason], "`, `") + "`"
		fmt.Fprintf(b, "| %s | %s |\n", names, cell(reason))
	}
	return b.String()
}

// defaultText is a flag's default as a cell of a table.
func defaultText(g *pflag.Flag) string {
	value := strings.Trim(g.DefValue, "[]")
	if value == "" {
		return ""
	}
	return "`" + value + "`"
}

// usage is a flag's text for --help without the marks around the name of its value, and with links to other pages.
func usage(g *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(g)
	return cell(toPage.ReplaceAllString(text, "([$1]($1$2))"))
}

// toPage is how a help text names a page and a heading there.
var toPage = regexp.MustCompile(`\(docs/([a-z]+\.md)(#[a-z0-9-]+)?\)`)

// TestHelpIsOneLine: the help of each command's flags says what they do in one line, and leaves the rest to a page.
// TestCodeNamesPages follows the links.
func TestHelpIsOneLine(t *testing.T) {
	const most = 100
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(g *pflag.Flag) {
			text := toPage.ReplaceAllString(g.Usage, "")
			if strings.Contains(text, "docs/") || strings.Contains(text, "\n") || utf8.RuneCountInString(text) > most {
				t.Errorf("%s --%s: %q: want one line of %d characters, and then a page: (docs/PAGE.md#HEADING)",
					cmd.CommandPath(), g.Name, g.Usage, most)
			}
		})
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(newCommand())
}

// ownFields are the fields of the configuration file that mean the same as nftproxy's own flags. An asterisk marks one
// whose changes take effect without a restart.
func ownFields() map[string]string {
	fields := map[string]string{noMasqueradeFlag: "`noMasqueradeCIDRs`\\*", balanceFlag: "with mode ipvs `ipvs.scheduler`"}
	for _, server := range []string{"metrics", "healthz"} {
		certificate, key := tlsFlags(server)
		fields[certificate], fields[key] = "`"+server+"ServerTLS.certFile`", "`"+server+"ServerTLS.keyFile`"
	}
	return fields
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
ipvs: {syncPeriod: 1s, minSyncPeriod: 1s, scheduler: sh, excludeCIDRs: [10.0.0.0/8], strictARP: true, tcpTimeout: 1s, tcpFinTimeout: 1s, udpTimeout: 1s}
nftables: {masqueradeBit: 1, masqueradeAll: true, syncPeriod: 1s, minSyncPeriod: 15s}
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
	known := []string{"mode", "kind", "apiVersion", "featureGates", "iptables.localhostNodePorts", "bindAddress"}
	for _, mode := range []string{"nftables", "iptables", "ipvs"} {
		file, err := kubeproxyconfig.Parse([]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: " +
			"KubeProxyConfiguration\nmode: " + mode + wholeFile))
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
	ignored = append(
		[]string{"mode has no effect: nftproxy always programs nftables; the mode says what other fields mean",
			"featureGates has no effect: all but " + kubeproxyconfig.GateExternalIPs}, ignored...)
	return byFlag, ignored
}

// leaves are the JSON paths of a type's fields that are no structs of fields.
func leaves(of reflect.Type, path string) []string {
	if of.Kind() != reflect.Struct || of.Name() == "Duration" || of.Name() == "QuantityValue" ||
		of.Name() == "TimeOrMetaDuration" {
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

// kubeProxyFlag is one of kube-proxy's flags.
type kubeProxyFlag struct{ name, kind, value string }

// recordedFlags are the flags of kube-proxy v1.37.2 on Linux. test/e2e compares the file
// with what the real one prints.
func recordedFlags(t *testing.T) []kubeProxyFlag {
	t.Helper()
	text, err := os.ReadFile("testdata/kube-proxy-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	var list []kubeProxyFlag
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); !strings.HasPrefix(line, "#") {
			list = append(list, kubeProxyFlag{words[0], words[1], strings.Join(words[2:], " ")})
		}
	}
	// kube-proxy does not list its deprecated flags.
	return append(list, kubeProxyFlag{"healthz-port", "int32", "10256"}, kubeProxyFlag{"metrics-port", "int32", "10249"})
}

// ownDefaults has the defaults that are not kube-proxy's, with the reason.
func ownDefaults() map[string][2]string {
	return map[string][2]string{
		"iptables-masquerade-bit":  {"-1", "marks are left to other programs"},
		"iptables-min-sync-period": {"10ms", "a sync takes milliseconds"},
		"logging-format":           {"", "programs read most logs"},
		"oom-score-adj":            {"", "the pod's priority says it, and a lower score needs CAP_SYS_RESOURCE"},
		"detect-local-mode":        {"ClusterCIDR", "kube-proxy fills it in later"},
	}
}

// TestKubeProxyFlags: run takes every flag of kube-proxy with a value of its type, and
// has its default.
func TestKubeProxyFlags(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	byName := map[string]string{
		"cluster-cidr": "10.0.0.0/8,fd00::/8", "config": "config.conf", "kubeconfig": kubeconfig,
		"master":            "https://192.0.2.1:6443",
		"hostname-override": "node-1", "pod-bridge-interface": "cni0", "pod-interface-name-prefix": "veth",
		"nodeport-addresses": "primary,10.0.0.0/8",
		"logging-format":     "json", "kube-api-content-type": "application/json", "show-hidden-metrics-for-version": "1.36",
		"ipvs-scheduler":     "rr",
		"ipvs-exclude-cidrs": "10.0.0.0/8,11.0.0.0/8", "write-config-to": "file",
	}
	byType := map[string]string{
		"bool": "true", "int32": "7", "float32": "2.5", "duration": "1m", "ip": "192.0.2.1", "ipport": "192.0.2.1:8080",
		"LocalMode": "NodeCIDR",
		"ProxyMode": "nftables", "mapStringBool": "A=true,B=false", "quantity": "64Ki", "Level": "4",
		"pattern=N,...": "server=4,other*=5", "version": "raw",
	}
	var run runOptions
	cmd := &cobra.Command{}
	run.addFlags(cmd)
	for _, f := range recordedFlags(t) {
		value, found := byName[f.name]
		if !found {
			value, found = byType[f.kind]
		}
		if !found {
			t.Errorf("--%s: what is a value of it?", f.name)
		}
		line := commandLine{"--" + f.name + "=" + value}
		if f.name != "hostname-override" {
			line = append(line, "--hostname-override=node-1")
		}
		if _, err := line.config([]byte(configHead)); err != nil {
			t.Errorf("--%s=%s: %v", f.name, value, err)
		}
		g := cmd.Flags().Lookup(f.name)
		if g == nil {
			continue // which is the error from above
		}
		want := f.value
		if own, differs := ownDefaults()[f.name]; differs {
			want = own[0]
		}
		if have := strings.Trim(g.DefValue, "[]"); have != want && !isZero(have, want) {
			t.Errorf("--%s has the default %q, kube-proxy's is %q", f.name, have, want)
		}
	}
}

// isZero says whether a help text leaves the default out because it is the type's zero.
func isZero(have, want string) bool {
	return want == "" && strings.Contains(" false 0 0s ", fmt.Sprintf(" %s ", have))
}

// TestInstallersArguments: the command lines with which distributions start kube-proxy.
func TestInstallersArguments(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"kubeconfig", "config.conf"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(configHead), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		flags commandLine
		notes []string
	}{
		// RKE2 starts kube-proxy as k3s does (k3s-io/k3s: kubeProxyArgs in
		// pkg/daemons/agent/agent_linux.go): the address has no port.
		"RKE2": {commandLine{
			"--cluster-cidr=10.42.0.0/16", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-close-wait=0s",
			"--conntrack-tcp-timeout-established=0s", "--healthz-bind-address=127.0.0.1", "--hostname-override=server-1",
			"--kubeconfig=" + filepath.Join(dir, "kubeconfig"), "--proxy-mode=iptables",
		}, []string{"--proxy-mode has no effect: nftproxy always programs nftables"}},
		"RKE2 by IPv6, with arguments of the operator": {commandLine{
			"--bind-address=::", "--cluster-cidr=10.42.0.0/16,2001:cafe:42::/56", "--conntrack-max-per-core=0",
			"--conntrack-tcp-timeout-close-wait=0s",
			"--conntrack-tcp-timeout-established=0s", "--healthz-bind-address=::1", "--hostname-override=server-1",
			"--kubeconfig=" + filepath.Join(dir, "kubeconfig"), "--proxy-mode=ipvs", "--ipvs-scheduler=rr",
			"--nodeport-addresses=primary",
			"--metrics-bind-address=0.0.0.0:10249",
		}, []string{"--proxy-mode has no effect"}},
		"kubeadm":   {commandLine{"--config=" + filepath.Join(dir, "config.conf"), "--hostname-override=node-1"}, nil},
		"kubespray": {commandLine{"--config=" + filepath.Join(dir, "config.conf"), "--hostname-override=node-1"}, nil},
		"k0s":       {commandLine{"--config=" + filepath.Join(dir, "config.conf"), "--hostname-override=node-1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := c.flags.config([]byte(configHead))
			if err != nil {
				t.Fatal(err)
			}
			notes := config.Notes
			if len(notes) != len(c.notes) {
				t.Errorf("notes: %q, want %q", notes, c.notes)
			}
			for _, want := range c.notes {
				if !strings.Contains(strings.Join(notes, "\n"), want) {
					t.Errorf("notes: %q, want %q", notes, want)
				}
			}
		})
	}
}

// TestOwnPorts: what the flags say of the ports that no Service takes.
func TestOwnPorts(t *testing.T) {
	for _, test := range []struct {
		flags           []string
		metrics, health string
		want            []watch.OwnPort
	}{
		{nil, defaultMetricsAddress, defaultHealthAddress, []watch.OwnPort{
			{Port: 22}, {Port: 10249, Addr: netip.MustParseAddr("127.0.0.1")}, {Port: 10256},
		}},
		{[]string{"--nftproxy-protected-node-ports="}, "", "", nil},
		{[]string{"--nftproxy-protected-node-ports=22,8443"}, "[::]:1", "no address", []watch.OwnPort{{Port: 1}, {Port: 22},
			{Port: 8443}}},
	} {
		var o claimOptions
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.addFlags(f)
		if err := f.Parse(test.flags); err != nil {
			t.Fatal(err)
		}
		if err := o.parse(); err != nil {
			t.Fatal(err)
		}
		got := o.watchOptions(ownServers(test.metrics, test.health, ""))
		if diff := cmp.Diff(test.want, got.OwnPorts, cmpopts.IgnoreFields(watch.OwnPort{}, "Whose"),
			cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty(),
			cmpopts.SortSlices(func(a, b watch.OwnPort) bool { return a.Port < b.Port })); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.flags, diff)
		}
		if got.IgnoreExternalIPs || got.MaxElements != 1<<18 || got.MaxAffinityPorts != 2000 {
			t.Errorf("%v: %+v", test.flags, got)
		}
	}
}

// TestSchedulers: what a scheduler of IPVS stands for, by flags and by a file, and that a given balance goes first.
// Each is named once, but for those that mean what nftproxy does.
func TestSchedulers(t *testing.T) {
	for _, c := range []struct {
		scheduler, mode, flag string
		want                  service.Balance
		note                  string
	}{
		{"sh", "ipvs", "", service.ByClient, "ipvs*scheduler: sh stands for --nftproxy-balance=client unless"},
		{"dh", "ipvs", "", service.ByClient, "ipvs*scheduler: dh stands for --nftproxy-balance=client unless"},
		{"mh", "ipvs", "", service.ByFlow, "ipvs*scheduler: mh stands for --nftproxy-balance=flow unless"},
		{"sh", "ipvs", "random", service.ByRandom, "unless that flag is given"},
		{"mh", "ipvs", "client", service.ByClient, "unless that flag is given"},
		{"rr", "ipvs", "", service.ByRandom, ""},
		{"wrr", "ipvs", "flow", service.ByFlow, ""},
		{"lc", "ipvs", "", service.ByRandom, "ipvs*scheduler has no effect: lc: a new connection goes to a random endpoint"},
		{"SH", "ipvs", "", service.ByRandom, `ipvs*scheduler has no effect: "SH" is no scheduler of IPVS`},
		{"sh", "nftables", "", service.ByRandom, "--ipvs-scheduler has no effect: --proxy-mode is not ipvs"},
		{"sh", "", "", service.ByRandom, "--ipvs-scheduler has no effect: --proxy-mode is not ipvs"},
	} {
		file := []byte(fmt.Sprintf("%smode: %q\nipvs: {scheduler: %s}\n", configHead, c.mode, c.scheduler))
		for by, line := range map[string]commandLine{
			"--ipvs-scheduler": {"--hostname-override=node-1", "--proxy-mode=" + c.mode, "--ipvs-scheduler=" + c.scheduler},
			"ipvs.scheduler":   {"--hostname-override=node-1", "--config=config.conf"},
		} {
			if c.flag != "" {
				line = append(line, "--nftproxy-balance="+c.flag)
			}
			got, err := line.config(file)
			if err != nil {
				t.Fatal(err)
			}
			if got.Objects.Balance != c.want {
				t.Errorf("%s %s, mode %q, flag %q: balance %s, want %s", by, c.scheduler, c.mode, c.flag, got.Objects.Balance,
					c.want)
			}
			notes := slices.DeleteFunc(slices.Clone(got.Notes), func(n string) bool { return !strings.Contains(n, "scheduler") })
			want := strings.ReplaceAll(c.note, "ipvs*scheduler", by)
			if by == "ipvs.scheduler" && c.mode != "ipvs" {
				want = "" // a section that the mode does not choose
			}
			if len(notes) > 1 || want == "" && len(notes) > 0 || want != "" &&
				(len(notes) == 0 || !strings.Contains(notes[0], want)) {
				t.Errorf("%s %s, mode %q: notes %q, want %q", by, c.scheduler, c.mode, notes, want)
			}
		}
	}
}

// TestClaimsReachTheWatcher: what the command line says of claims is what the daemon
// hands to its watcher.
func TestClaimsReachTheWatcher(t *testing.T) {
	c, err := commandLine{
		"--hostname-override=node-1", "--nftproxy-protected-node-ports=2222", "--feature-gates=AllowServiceExternalIPs=false",
		"--healthz-bind-address=", "--metrics-bind-address=", "--nftproxy-service-proxy-name=other",
		"--nftproxy-balance=flow",
	}.config(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := c.Objects
	if got.Balance != service.ByFlow {
		t.Errorf("the balance is %v", got.Balance)
	}
	if got.ProxyName != "other" {
		t.Errorf("the proxy's name is %q", got.ProxyName)
	}
	if len(got.OwnPorts) != 1 || got.OwnPorts[0].Port != 2222 || !got.IgnoreExternalIPs {
		t.Errorf("own ports %+v, externalIPs ignored: %t; want port 2222 and true", got.OwnPorts, got.IgnoreExternalIPs)
	}
}

// TestNodePortsByMode: --proxy-mode says what --nodeport-addresses means without a file, as mode does in one.
func TestNodePortsByMode(t *testing.T) {
	for line, want := range map[string]string{
		"":                      "[]",
		"--proxy-mode=nftables": "[]",
		"--proxy-mode=ipvs":     "[all]",
		"--proxy-mode=iptables": "[all,127.0.0.0/8]",
		"--proxy-mode=iptables --iptables-localhost-nodeports=false":      "[all]",
		"--proxy-mode=iptables --nodeport-addresses=primary":              "[primary]",
		"--proxy-mode=iptables --nodeport-addresses=0.0.0.0/0":            "[0.0.0.0/0,127.0.0.0/8]",
		"--nodeport-addresses=0.0.0.0/0":                                  "[0.0.0.0/0]",
		"--proxy-mode=iptables --bind-address=192.0.2.1":                  "[all,127.0.0.0/8]",
		"--proxy-mode=nftables --bind-address=2001:db8::1":                "[primary,2001:db8::1/128]",
		"--bind-address=192.0.2.1 --nodeport-addresses=localhost,primary": "[localhost,primary,192.0.2.1/32]",
		"--iptables-localhost-nodeports=true": "[] --iptables-localhost-nodeports has no effect: " +
			"--proxy-mode is not iptables",
		"--config=config.conf --proxy-mode=nftables": "[all,127.0.0.0/8] --proxy-mode has no effect: the " +
			"configuration file decides",
		"--config=config.conf --nodeport-addresses=primary": "[all,127.0.0.0/8] --nodeport-addresses has no effect: the " +
			"configuration file decides",
	} {
		got, err := commandLine(append(strings.Fields(line), "--hostname-override=node-1")).config(
			[]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		text := got.Flags["nodeport-addresses"]
		for _, note := range got.Notes {
			if !strings.Contains(note, "always programs nftables") {
				text += " " + note
			}
		}
		if text != want {
			t.Errorf("%s: %q, want %q", line, text, want)
		}
	}
}
