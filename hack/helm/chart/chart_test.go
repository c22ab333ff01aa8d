package chart_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"nftproxy/hack/helm/chart"
	"nftproxy/hack/release/manifest"
)

var update = flag.Bool("update", false, "write the files of kustomize that are made from the chart")

const (
	folder = "../../../deploy/helm"
	deploy = "../../../deploy"
)

// values parses values that a person writes.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func render(t *testing.T, text string) map[string]string {
	t.Helper()
	objects, err := chart.Render(folder, chart.Release{Namespace: "kube-system", Values: values(t, text)})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestSources: the chart is the only source. These files of kustomize are what it renders.
func TestSources(t *testing.T) {
	base := render(t, read(t, deploy+"/base/values.yaml"))
	gated := render(t, "startupTaint: true")
	validated := render(t, "validateOptions: true")
	alerts := render(t, "prometheusRule: {enabled: true}")["prometheus-rule.yaml"]
	config := values(t, render(t, `{existingConfigMap: "", apiServer: {host: ADDRESS}}`)["configmap.yaml"])["data"].(map[string]any)["config.conf"].(string)
	for file, text := range map[string]string{
		"base/daemonset.yaml":            base["daemonset.yaml"],
		"base/rbac.yaml":                 base["rbac.yaml"],
		"components/gated/rbac.yaml":     gated["startup-taint-rbac.yaml"],
		"components/gated/policy.yaml":   gated["startup-taint-policy.yaml"],
		"overlays/elsewhere/config.conf": config,

		"components/validate-options/policy.yaml": validated["validate-options-policy.yaml"],
		"alerts/nftproxy.yaml":                    alerts,
	} {
		if text == "" {
			t.Errorf("the chart has nothing for %s", file)
			continue
		}
		if !strings.HasSuffix(file, ".conf") { // which people edit
			text = "# Made from the chart in deploy/helm by make golden: change the chart, not this file.\n" + text
		}
		file = filepath.Join(deploy, file)
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(text, read(t, file)); diff != "" {
			t.Errorf("%s is not what the chart renders (make golden) (-chart +file):\n%s", file, diff)
		}
	}
}

// TestKustomize: each overlay has the same objects as the chart with values that say the same.
func TestKustomize(t *testing.T) {
	for overlay, text := range map[string]string{
		"kubeadm":   "",
		"trial":     `nodeSelector: {nftproxy.io/trial: "true"}`,
		"gated":     "startupTaint: true",
		"elsewhere": `{existingConfigMap: "", apiServer: {host: ADDRESS}}`,
		"root":      "runAsNonRoot: false",

		"validate-options": "validateOptions: true",
		"selinux":          "seLinuxOptions: {type: spc_t}",
	} {
		t.Run(overlay, func(t *testing.T) {
			at := t.TempDir()
			if err := os.CopyFS(at, os.DirFS(deploy)); err != nil {
				t.Fatal(err)
			}
			if overlay == "elsewhere" { // as its comment says
				file := filepath.Join(at, "overlays", overlay, "kustomization.yaml")
				before, patches, found := strings.Cut(read(t, file), "\n#patches:")
				if !found {
					t.Fatal("there is no place for the address")
				}
				if err := os.WriteFile(file, []byte(before+"\npatches:"+strings.ReplaceAll(patches, "\n#", "\n")),
					0o600); err != nil {
					t.Fatal(err)
				}
			}
			// a person's own overlay
			if component := filepath.Join(at, "components", overlay); exists(component) &&
				!exists(filepath.Join(at, "overlays", overlay)) {
				folder := filepath.Join(at, "overlays", overlay)
				err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, "kustomization.yaml"),
					[]byte("resources: [../kubeadm]\ncomponents: [../../components/"+overlay+"]\n"), 0o600))
				if err != nil {
					t.Fatal(err)
				}
			}
			b, err := manifest.Render(filepath.Join(at, "overlays", overlay), "")
			if err != nil {
				t.Fatal(err)
			}
			want, got := byName(t, string(b)), byName(t, chart.Manifest(render(t, text)))
			if diff := cmp.Diff(want, got); diff != "" || len(want) < 4 {
				t.Errorf("%d objects (-kustomize +chart):\n%s", len(want), diff)
			}
		})
	}
}

// TestLint: Helm's linter has nothing to say about the chart, with values of each kind.
func TestLint(t *testing.T) {
	for _, text := range []string{"", everything} {
		if err := chart.Lint(folder, chart.Release{Namespace: "kube-system", Values: values(t, text)}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// everything sets every value.
const everything = `
image: {repository: registry.example.org/team/nftproxy, digest: "sha256:` + digest + `", pullPolicy: Always, pullSecrets: [{name: registry}]}
existingConfigMap: ""
apiServer: {host: "2001:db8::1", port: 443}
clusterCIDR: 10.244.0.0/16,fd00:10:244::/56
nodePortAddresses: [localhost, 192.0.2.0/24, "2001:db8::/32"]
configuration: {logging: {verbosity: 3}, conntrack: {maxPerCore: 0}}
counters: metrics
eject: "on"
balance: client
podMonitor: {enabled: true, labels: {release: monitoring}, interval: 15s, tlsConfig: {insecureSkipVerify: true}}
prometheusRule: {enabled: true, labels: {release: monitoring}, runbookBase: "https://example.org/nftproxy/"}
startupTaint: true
validateOptions: true
conntrackSysctls: false
runAsNonRoot: false
extraArgs: [--nftproxy-max-affinity-ports=100]
nodeSelector: {pool: edge}
affinity: {nodeAffinity: {}}
tolerations: [{key: edge, operator: Exists}]
priorityClassName: edge
maxUnavailable: 3
resources: {limits: {memory: 1Gi}}
podAnnotations: {example.org/a: b}
podLabels: {team: net}
seLinuxOptions: {type: spc_t}
metricsTLSSecret: metrics
healthTLSSecret: health
`

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestValues: each value is where it belongs (testdata/everything.yaml).
func TestValues(t *testing.T) {
	got := byName(t, chart.Manifest(render(t, everything)))
	config := got["ConfigMap nftproxy"].(map[string]any)["data"].(map[string]any)["config.conf"].(string)
	want := map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "detectLocalMode": "ClusterCIDR",
		"clusterCIDR": "10.244.0.0/16,fd00:10:244::/56", "nodePortAddresses": []any{"localhost", "192.0.2.0/24",
			"2001:db8::/32"},
		"logging": map[string]any{"verbosity": 3.0}, "conntrack": map[string]any{"maxPerCore": 0.0},
	}
	if diff := cmp.Diff(want, values(t, config)); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	alert := got["PrometheusRule nftproxy"].(map[string]any)["spec"].(map[string]any)["groups"].([]any)[0].(map[string]any)
	first := alert["rules"].([]any)[0].(map[string]any)["annotations"].(map[string]any)
	if url := first["runbook_url"]; url != "https://example.org/nftproxy/docs/troubleshooting.md"+
		"#prometheus-does-not-reach-nftproxy" {
		t.Errorf("the runbook of an alert is %v", url)
	}
	monitor := got["PodMonitor nftproxy"]
	if diff := cmp.Diff(golden(t, "pod-monitor.yaml", monitor), monitor); diff != "" {
		t.Errorf("PodMonitor (-want +got):\n%s", diff)
	}
	daemonSet := got["DaemonSet nftproxy"]
	if diff := cmp.Diff(golden(t, "everything.yaml", daemonSet), daemonSet); diff != "" {
		t.Errorf("DaemonSet (-want +got):\n%s", diff)
	}
}

// TestNoValue: an empty list or map leaves its field out.
func TestNoValue(t *testing.T) {
	text := render(t, `{tolerations: null, priorityClassName: "", resources: {requests: null}}`)["daemonset.yaml"]
	for _, field := range []string{"tolerations", "priorityClassName", "imagePullSecrets", "affinity", "seLinuxOptions",
		"annotations", "null"} {
		if strings.Contains(text, field) {
			t.Errorf("the DaemonSet has %s:\n%s", field, text)
		}
	}
}

// TestOlderValues: helm upgrade --reuse-values has the values of the chart before, which may lack a newer one. It
// stands for its default, and no flag comes without a value.
func TestOlderValues(t *testing.T) {
	want := render(t, "")["daemonset.yaml"]
	for _, name := range []string{"counters", "eject", "flows", "balance", "dnsUDPTimeouts", "startupTaint", "extraArgs",
		"metricsTLSSecret", "healthTLSSecret"} {
		if diff := cmp.Diff(want, render(t, name+": null")["daemonset.yaml"]); diff != "" {
			t.Errorf("without %s (-want +got):\n%s", name, diff)
		}
	}
}

// TestRefused: a value that cannot be used, or that would have no effect, is refused by its name.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		`counters: all`:                          "counters",
		`counter: tables`:                        "counter",
		`startupTaint: "yes"`:                    "startupTaint",
		`apiServer: {host: "https://192.0.2.1"}`: "host",
		`apiServer: {host: "[2001:db8::1]"}`:     "host",
		`apiServer: {port: 0}`:                   "port",
		`apiServer: {port: "6443"}`:              "port",
		`image: {digest: latest}`:                "digest",
		`image: {name: nftproxy}`:                "name",
		`maxUnavailable: 0`:                      "maxUnavailable",
		`extraArgs: [-v=3]`:                      "extraArgs",
		`extraArgs: [--nftproxy-ejection=on]`:    "extraArgs",
		`eject: true`:                            "eject",
		`balance: rr`:                            "balance",
		`podMonitor: {interval: often}`:          "interval",
		`prometheusRule: {runbookBase: here}`:    "runbookBase",
		`resources: {cpu: 1}`:                    "resources",
		`seLinuxOptions: spc_t`:                  "seLinuxOptions",
		`existingConfigMap: ""`:                  "apiServer.host is not set",
		`clusterCIDR: 10.244.0.0/16`:             "clusterCIDR has no effect with existingConfigMap=kube-proxy",
		`nodePortAddresses: [192.0.2.0/24]`:      "nodePortAddresses has no effect",
		`configuration: {mode: nftables}`:        "configuration has no effect",
		`apiServer: {host: a, hostFrom: {fieldRef: {fieldPath: status.hostIP}}}`:        "set one of them",
		`{existingConfigMap: "", apiServer: {host: a}, clusterCIDR: everything}`:        "clusterCIDR",
		`{existingConfigMap: "", apiServer: {host: a}, nodePortAddresses: [192.0.2.1]}`: "nodePortAddresses",
		`{existingConfigMap: "", apiServer: {host: a}, configuration: {clusterCIDR: ` +
			`10.0.0.0/8}}`: "configuration.clusterCIDR",
		`{existingConfigMap: "", apiServer: {hostFrom: {fieldRef: {}, configMapKeyRef: {}}}}`: "hostFrom",
	} {
		_, err := chart.Render(folder, chart.Release{Namespace: "kube-system", Values: values(t, text)})
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

// TestNamespace: everything is in the release's namespace, and the admission policy knows the account there.
func TestNamespace(t *testing.T) {
	objects, err := chart.Render(folder, chart.Release{Namespace: "net", Values: values(t, "startupTaint: true")})
	if err != nil {
		t.Fatal(err)
	}
	text := chart.Manifest(objects)
	if strings.Contains(text, "kube-system") || !strings.Contains(text, "system:serviceaccount:net:nftproxy") {
		t.Errorf("in the namespace net:\n%s", text)
	}
}

// TestPack: the archive has the version and the image of a release, renders as the folder does, and has the same bytes
// whenever it is written.
func TestPack(t *testing.T) {
	var archives [2][]byte
	for i := range archives {
		copied := t.TempDir() // with times of its own
		if err := os.CopyFS(copied, os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
		name, err := chart.Pack(copied, t.TempDir(), "v1.2.3", "registry.example.org/team/nftproxy", "v1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(name) != "nftproxy-1.2.3.tgz" {
			t.Errorf("the archive is %s", name)
		}
		archives[i] = []byte(read(t, name))
		objects, err := chart.Render(name, chart.Release{Namespace: "kube-system"})
		if err != nil {
			t.Fatal(err)
		}
		want := strings.ReplaceAll(chart.Manifest(render(t, "")), "localhost/nftproxy:dev",
			"registry.example.org/team/nftproxy:v1.2.3")
		if diff := cmp.Diff(want, chart.Manifest(objects)); diff != "" {
			t.Errorf("the archive renders (-want +got):\n%s", diff)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same chart differ")
	}
	if _, err := chart.Pack(folder, t.TempDir(), "one", "x", "y"); err == nil {
		t.Error("a version that is not semantic is taken")
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// golden returns the object of a file in testdata, which -update writes.
func golden(t *testing.T, name string, o any) any {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(marshal(t, o)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return any(values(t, read(t, file)))
}

func marshal(t *testing.T, o any) string {
	t.Helper()
	b, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// byName are the objects of a text by kind and name.
func byName(t *testing.T, text string) map[string]any {
	t.Helper()
	objects := map[string]any{}
	for part := range strings.SplitSeq("\n"+text, "\n---\n") {
		o := values(t, part)
		name := fmt.Sprint(o["kind"], " ", o["metadata"].(map[string]any)["name"])
		if objects[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		objects[name] = o
	}
	return objects
}
