package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"nftproxy/daemon"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
	"nftproxy/watch"
)

const configHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"

// following is a daemon.ConfigFollower whose effects the test sees.
type following struct {
	*testing.T
	*daemon.ConfigFollower
	// log and events are what people are told.
	mu     sync.Mutex
	log    bytes.Buffer
	events []watch.Event
	// verbosities has what the log was set to.
	verbosities []int
	sysctls     string
	registry    *prometheus.Registry
}

func newFollowing(t *testing.T, text string) *following {
	f := &following{T: t, sysctls: t.TempDir(), registry: prometheus.NewRegistry()}
	for _, name := range []string{"max", "buckets", "tcp_be_liberal", "tcp_timeout_established", "tcp_timeout_close_wait",
		"udp_timeout", "udp_timeout_stream"} {
		if err := os.WriteFile(filepath.Join(f.sysctls, "nf_conntrack_"+name), []byte("1000000"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := f.line("config.conf").config([]byte(configHead + text))
	if err != nil {
		t.Fatal(err)
	}
	f.follow(*c)
	return f
}

// line is a command line that names a configuration file.
func (f *following) line(file string) commandLine {
	return commandLine{"--config=" + file, "--hostname-override=node-1", "--nftproxy-conntrack-sysctl-dir=" + f.sysctls}
}

// follow makes the follower of a configuration.
func (f *following) follow(c daemon.Config) {
	c.Log = slog.New(slog.NewJSONHandler(f, nil))
	c.SetVerbosity = func(v int) { f.verbosities = append(f.verbosities, v) }
	record := func(e watch.Event) { f.events = append(f.events, e) }
	w := watch.NewWatcher(watch.Options{Node: "node-1"}, service.NewMailbox())
	loop := proxy.New(proxy.DefaultConfig(), nil, ruleset.NewCompiler(c.Rules).Compile)
	f.ConfigFollower = daemon.NewConfigFollower(c, record, daemon.NewSysctls(c, record), w, loop)
	f.Counts = metrics.NewConfigFile(f.registry)
}

func (f *following) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(b)
}

// logText is the whole log.
func (f *following) logText() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.String()
}

// change gives the follower another text and returns the log lines of that.
func (f *following) change(text string) string {
	f.Helper()
	before := len(f.logText())
	f.Update([]byte(configHead+text), nil)
	return f.logText()[before:]
}

// TestConfigLive: each field that may change while the proxy runs does, and is named;
// nothing else is done.
func TestConfigLive(t *testing.T) {
	for _, test := range []struct {
		name, before, after string
		fields              []string
	}{
		{"nothing but a comment", "", "# more\n", nil},
		{"ranges of pods", "clusterCIDR: 10.0.0.0/8\n", "clusterCIDR: 10.0.0.0/9\n", []string{"clusterCIDR"}},
		{"interface of pods", "", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n",
			[]string{"detectLocal.bridgeInterface", "detectLocalMode"}},
		{"interfaces of pods", "", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}\n",
			[]string{"detectLocal.interfaceNamePrefix", "detectLocalMode"}},
		{"a field that goes", "clusterCIDR: 10.0.0.0/8\n", "", []string{"clusterCIDR"}},
		{"node port addresses", "nodePortAddresses: [primary]\n", "nodePortAddresses: [primary, 192.0.2.0/24]\n",
			[]string{"nodePortAddresses"}},
		{"masquerading", "", "nftables: {masqueradeAll: true, masqueradeBit: 5}\n", []string{"nftables.masqueradeAll",
			"nftables.masqueradeBit"}},
		{"ranges that are not masqueraded", "noMasqueradeCIDRs: [10.1.0.0/16]\n",
			"noMasqueradeCIDRs: [10.1.0.0/16, fd00::/8]\n", []string{"noMasqueradeCIDRs"}},
		{"period", "", "nftables: {minSyncPeriod: 15s}\n", []string{"nftables.minSyncPeriod"}},
		{"verbosity", "", "logging: {verbosity: 4}\n", []string{"logging.verbosity"}},
		{"kernel settings", "", "conntrack: {maxPerCore: 0, min: 1, tcpEstablishedTimeout: 1h, tcpCloseWaitTimeout: 1m, " +
			"tcpBeLiberal: true, udpTimeout: 7s, udpStreamTimeout: 8s}\n",
			[]string{"conntrack.maxPerCore", "conntrack.min", "conntrack.tcpBeLiberal", "conntrack.tcpCloseWaitTimeout",
				"conntrack.tcpEstablishedTimeout", "conntrack.udpStreamTimeout", "conntrack.udpTimeout"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFollowing(t, test.before)
			log := f.change(test.after)
			for _, field := range test.fields {
				if !strings.Contains(log, fmt.Sprintf("%q", field)) {
					t.Errorf("the log does not name %s:\n%s", field, log)
				}
			}
			if len(test.fields) > 0 && strings.Count(log, "\n") > 2+7 || strings.Contains(log, "restart") || len(f.events) > 0 {
				t.Errorf("log:\n%s\nevents: %v", log, f.events)
			}
			if want := slices.Contains(test.fields, "logging.verbosity"); want != slices.Equal(f.verbosities, []int{4}) {
				t.Errorf("the log was set to %v", f.verbosities)
			}
			if udp, err := os.ReadFile(filepath.Join(f.sysctls, "nf_conntrack_udp_timeout")); err != nil ||
				(strings.TrimSpace(string(udp)) == "7") != slices.Contains(test.fields, "conntrack.udpTimeout") {
				t.Errorf("nf_conntrack_udp_timeout is %s, %v", udp, err)
			}
		})
	}
}

// TestConfigRestart: fields that count at the next start only are named once, in the log
// and in an event of the Node, until the file says again what is in force.
func TestConfigRestart(t *testing.T) {
	f := newFollowing(t, "")
	log := f.change("healthzBindAddress: 0.0.0.0:20256\nclusterCIDR: 10.0.0.0/8\nfeatureGates: " +
		"{AllowServiceExternalIPs: false}\n")
	for _, want := range []string{`"in_force":["clusterCIDR"]`, `need a restart`,
		`"fields":["featureGates.AllowServiceExternalIPs","healthzBindAddress"]`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	events := f.events
	if len(events) != 1 || events[0].Object != watch.NodeObject("node-1") ||
		events[0].Reason != watch.ReasonConfigRestart ||
		!strings.Contains(events[0].Note, "featureGates.AllowServiceExternalIPs, healthzBindAddress") {
		t.Errorf("events: %v", events)
	}
	f.wantMetrics(1, 1, 1, 0)
	if log := f.change("healthzBindAddress: 0.0.0.0:20256\nfeatureGates: {AllowServiceExternalIPs: " +
		"false}\n"); strings.Contains(log, "restart") {
		t.Errorf("the same fields again:\n%s", log)
	}
	f.wantMetrics(1, 1, 2, 0)
	if log := f.change(""); strings.Contains(log, "restart") || len(f.events) != 1 {
		t.Errorf("log:\n%s\nevents: %v", log, f.events)
	}
	f.wantMetrics(1, 0, 3, 0)
}

// TestConfigBad: a file that cannot be used changes nothing and is reported with all of
// its errors, once; the next good one counts.
func TestConfigBad(t *testing.T) {
	f := newFollowing(t, "")
	started := f.Flags()
	log := f.change("clusterCIDR: 10.0.0.0/99\noomScoreAdj: 2000\nbindAddress: nowhere\nlogging: {verbosity: 4}\n")
	if strings.Count(log, "\n") != 1 || !strings.Contains(log, `oomScoreAdj: \"2000\": want -1000 to 1000`) ||
		!strings.Contains(log, `bindAddress: \"nowhere\": want`) || !strings.Contains(log, "clusterCIDR: ") ||
		!strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("log:\n%s", log)
	}
	log = f.change("clusterCIDR: 10.0.0.0/99\nconntrack: {min: -1}\n")
	for _, want := range []string{"clusterCIDR: ", "conntrack.min: -1 is negative"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	f.wantMetrics(0, 0, 0, 2)
	if len(f.events) != 2 || f.events[1].Reason != watch.ReasonConfigInvalid || !strings.Contains(f.events[1].Note,
		"conntrack.min: -1 is negative") {
		t.Errorf("events: %v", f.events)
	}
	before := len(f.logText())
	for range 2 {
		f.Update(nil, fmt.Errorf("open config.conf: %w", fs.ErrNotExist))
	}
	if log := f.logText()[before:]; strings.Count(log, "\n") != 1 ||
		!strings.Contains(log, "open config.conf: file does not exist") {
		t.Errorf("a missing file:\n%s", log)
	}
	if len(f.verbosities) > 0 || !maps.Equal(f.Flags(), started) {
		t.Error("a file that cannot be used has changed settings")
	}
	f.change("logging: {verbosity: 4}\n")
	f.wantMetrics(1, 0, 1, 3)
	if !slices.Equal(f.verbosities, []int{4}) {
		t.Errorf("the log was set to %v", f.verbosities)
	}
}

// wantMetrics checks the metrics.
func (f *following) wantMetrics(valid, restart, accepted, rejected int) {
	f.Helper()
	want := fmt.Sprintf(`
# HELP nftproxy_config_file_valid 1 if the configuration file can be used; 0 if the settings from before its last change remain.
# TYPE nftproxy_config_file_valid gauge
nftproxy_config_file_valid %d
# HELP nftproxy_config_file_restart_required 1 if the configuration file has changed in fields that take effect at the next start only, else 0.
# TYPE nftproxy_config_file_restart_required gauge
nftproxy_config_file_restart_required %d
# HELP nftproxy_config_file_changes_total Changes of the configuration file's text, by whether it could be used.
# TYPE nftproxy_config_file_changes_total counter
nftproxy_config_file_changes_total{result="accepted"} %d
nftproxy_config_file_changes_total{result="rejected"} %d
`, valid, restart, accepted, rejected)
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(want)); err != nil {
		f.Error(err)
	}
}

// TestEveryFlagIsLiveOrNot: a live change names flags that there are.
func TestEveryFlagIsLiveOrNot(t *testing.T) {
	flags := newFollowing(t, "").Flags()
	for _, flag := range daemon.LiveFlags() {
		if _, ok := flags[flag]; !ok {
			t.Errorf("there is no flag --%s", flag)
		}
	}
}

// TestConfigMapSwap changes the file of a process by swaps of ..data, as the kubelet
// does, and looks at the kernel's rules: they are those of a start with that file.
func TestConfigMapSwap(t *testing.T) {
	nft := netfilter.NFTForTest(t)
	ns := testnet.NamespaceForTest(t, "swap")
	dir := t.TempDir()
	publish := configMap(t, dir, "config.conf")
	publish("clusterCIDR: 10.0.0.0/8\n")
	flags := []string{"--config", filepath.Join(dir, "config.conf"), "--nftproxy-manifests",
		manifest(t, webManifest("", "10.244.7.1", "fd00:7::1")), "--nftproxy-conntrack-sysctl-dir", t.TempDir()}
	r := start(t, ns, flags...)
	r.awaitSync()
	listing := func() string {
		t.Helper()
		text, err := nft.Ruleset(ns)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if text := listing(); !strings.Contains(text, "ip saddr != 10.0.0.0/8") || strings.Contains(text, "meta mark") {
		t.Fatalf("at the start:\n%s", text)
	}

	publish("clusterCIDR: 10.9.0.0/16\nnftables: {masqueradeBit: 3}\nnodePortAddresses: [all]\n")
	r.await("the change", func(l logged) bool { return l.Msg == "the configuration file has changed" })
	if n := r.awaitSync(); n == 0 {
		t.Error("other settings wrote nothing")
	}
	changed := listing()
	if !strings.Contains(changed, "ip saddr != 10.9.0.0/16") || !strings.Contains(changed, "0x00000008") ||
		strings.Contains(changed, "ct label set") {
		t.Errorf("after the change:\n%s", changed)
	}

	publish("clusterCIDR: 10.9.0.0/99\n")
	r.await("the error", func(l logged) bool { return l.Level == "ERROR" && strings.Contains(l.Msg, "cannot be used") })
	if text := listing(); text != changed {
		t.Errorf("a bad file changed the rules:\n%s\nwant\n%s", text, changed)
	}
	publish("clusterCIDR: 10.9.0.0/16\nnftables: {masqueradeBit: 3}\nnodePortAddresses: [all]\nhealthzBindAddress: " +
		"127.0.0.1:20256\n")
	r.await("the need of a restart", func(l logged) bool { return strings.Contains(l.Msg, "need a restart") })
	r.end()
	if n := firstSync(t, ns, flags...); n != 0 {
		t.Errorf("a start with the same file wrote %d objects: the rules were not those of the file", n)
	}
}

// configMap makes a directory as the kubelet mounts a ConfigMap. The function that it
// returns gives the file another text, by a swap of ..data.
func configMap(t *testing.T, dir, file string) (publish func(text string)) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)))
	version := 0
	return func(text string) {
		t.Helper()
		version++
		name := fmt.Sprintf("..version_%d", version)
		must(os.Mkdir(filepath.Join(dir, name), 0o755))
		must(os.WriteFile(filepath.Join(dir, name, file), []byte(configHead+text), 0o644))
		must(os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..version_%d", version-1))); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}
