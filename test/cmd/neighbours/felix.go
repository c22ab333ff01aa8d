package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
)

// felixScript starts and ends Calico's Felix, and does what Calico's CNI plugin does before.
//
//go:embed felix.sh
var felixScript string

//go:embed calico.yaml
var calicoObjects string

// podPolicies are about the client's and the endpoint's pod, by the ports of pods that they leave open.
const podPolicies = `---
kind: NetworkPolicy
metadata: {name: default.near, namespace: default}
spec:
  tier: default
  selector: app == 'near'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, destination: {ports: [%[1]s]}}
  - {action: Allow, protocol: UDP, destination: {ports: [%[1]s]}}
---
kind: NetworkPolicy
metadata: {name: default.pod, namespace: default}
spec:
  tier: default
  selector: app == 'pod'
  types: [Egress]
  egress:
  - {action: Allow, protocol: TCP, destination: {nets: [10.244.0.0/16], ports: [%[1]s]}}
  - {action: Allow, protocol: UDP, destination: {nets: [10.244.0.0/16], ports: [%[1]s]}}
  - {action: Allow, protocol: TCP, destination: {nets: ["fd00:244::/56"], ports: [%[1]s]}}
  - {action: Allow, protocol: UDP, destination: {nets: ["fd00:244::/56"], ports: [%[1]s]}}
  - {action: Allow, protocol: TCP, destination: {ports: [32100]}}
  - {action: Allow, protocol: UDP, destination: {ports: [32100]}}
`

// hostPolicies are about the node's own interface, by the ports of pods that they leave open to the client outside, and
// the port of the node whose connections are not tracked. Felix itself leaves the port of etcd open.
const hostPolicies = `---
kind: HostEndpoint
metadata: {name: node-1, labels: {host: node-1}}
spec: {node: node-1, interfaceName: eth0, expectedIPs: [192.168.100.1, "fd00:100::1"]}
---
kind: GlobalNetworkPolicy
metadata: {name: default.untracked}
spec:
  tier: default
  selector: host == 'node-1'
  doNotTrack: true
  applyOnForward: true
  types: [Ingress, Egress]
  ingress: [{action: Allow, protocol: TCP, destination: {ports: [32100]}}]
  egress: [{action: Allow, protocol: TCP, source: {ports: [32100]}}]
---
kind: GlobalNetworkPolicy
metadata: {name: default.pre-dnat}
spec:
  tier: default
  selector: host == 'node-1'
  preDNAT: true
  applyOnForward: true
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, destination: {ports: ["30000:32767", 80, 90, %[1]s]}}
  - {action: Allow, protocol: UDP, destination: {ports: ["30000:32767", 80, 90, %[1]s]}}
  - {action: Deny, protocol: TCP}
  - {action: Deny, protocol: UDP}
---
kind: GlobalNetworkPolicy
metadata: {name: default.own}
spec:
  tier: default
  selector: host == 'node-1'
  types: [Ingress, Egress]
  ingress:
  - {action: Allow, protocol: TCP, destination: {ports: ["30000:32767"]}}
  - {action: Allow, protocol: UDP, destination: {ports: ["30000:32767"]}}
  - {action: Allow, protocol: ICMP}
  - {action: Allow, protocol: ICMPv6}
  egress: [{action: Allow}]
`

// buildFelix builds Felix from a checkout of Calico's repository, in which alone its module can be built. It returns
// the folder of the binary, and the version.
func buildFelix(ctx context.Context, checkout string) (folder, version string, err error) {
	folder = filepath.Join(checkout, "felix", "bin", "neighbours")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
		"-o", filepath.Join(folder, "calico-felix"), "./felix/cmd/calico-felix")
	// Without cgo it has no BPF, which none of the rows is about.
	cmd.Dir, cmd.Env = checkout, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("build Felix: %w: %s", err, bytes.TrimSpace(out))
	}
	out, err := exec.CommandContext(ctx, "git", "-C", checkout, "log", "-1", "--format=Felix %h of %cs").Output()
	if err != nil {
		return "", "", fmt.Errorf("ask for the commit of Calico: %w", err)
	}
	return folder, strings.TrimSpace(string(out)), nil
}

// storeAddr is where etcd is.
const storeAddr = "192.168.100.1:2379"

// startStore starts the etcd that Felix of both nodes asks, on the node.
func (w *world) startStore(ctx context.Context) error {
	path, err := controlplane.Tool(ctx, "etcd")
	if err != nil {
		return err
	}
	const url, peers = "http://" + storeAddr, "http://127.0.0.1:2380"
	p, err := child.Start(w.net.Node, exec.Command(path, "--data-dir="+filepath.Join(w.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+url, "--advertise-client-urls="+url, "--listen-peer-urls="+peers))
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	w.servers = append(w.servers, p)
	ready := func(l child.Line) bool { return strings.Contains(l.Text, "ready to serve client requests") }
	_, _, err = p.Await(ctx, 0, ready)
	if err != nil {
		err = fmt.Errorf("await etcd: %w\n%s", err, p.Tail(5))
	}
	return err
}

// store puts objects into etcd, where Calico's clients put them: resources, and the blocks of IPAM.
func (w *world) store(ctx context.Context, objects string) error {
	for text := range strings.SplitSeq(objects, "---\n") {
		if text == "" {
			continue
		}
		var object map[string]any
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			return fmt.Errorf("read %s: %w", text, err)
		}
		key, err := storeKey(object)
		if err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		value := any(object)
		if object["kind"] == "Block" {
			value = object["spec"]
		}
		if err := w.put(ctx, key, value); err != nil {
			return fmt.Errorf("store %s: %w", key, err)
		}
	}
	return nil
}

// storeKey is the key of an object, which gets the version of Calico's API.
func storeKey(object map[string]any) (string, error) {
	kind, _ := object["kind"].(string)
	if spec, _ := object["spec"].(map[string]any); kind == "Block" {
		block, err := netip.ParsePrefix(fmt.Sprint(spec["cidr"]))
		version := 6
		if block.Addr().Is4() {
			version = 4
		}
		name := strings.ReplaceAll(block.String(), "/", "-")
		return fmt.Sprintf("/calico/ipam/v2/assignment/ipv%d/block/%s", version, name), err
	}
	metadata, _ := object["metadata"].(map[string]any)
	name, is := metadata["name"].(string)
	if !is {
		return "", errors.New("an object without a name")
	}
	object["apiVersion"] = "projectcalico.org/v3"
	kinds := strings.ToLower(kind) + "s"
	if stem, y := strings.CutSuffix(strings.ToLower(kind), "y"); y {
		kinds = stem + "ies"
	}
	if namespace, is := metadata["namespace"].(string); is {
		name = namespace + "/" + name
	}
	return "/calico/resources/v3/projectcalico.org/" + kinds + "/" + name, nil
}

// put puts one value, by etcd's gateway for JSON.
func (w *world) put(ctx context.Context, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string][]byte{"key": []byte(key), "value": text})
	if err != nil {
		return err
	}
	const url = "http://" + storeAddr + "/v3/kv/put"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: w.net.Node.Dial, DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s: %s", response.Status, bytes.TrimSpace(answer))
	}
	return nil
}

// route is how Calico connects nodes.
type route struct{ encapsulation, device, device6 string }

func plain() route { return route{"Never", "eth0", "eth0"} }
func vxlan() route { return route{"Always", "vxlan.calico", "vxlan-v6.calico"} }

// agents enforce network policies by rules of the node.
func agents() []neighbour {
	return []neighbour{
		felix("calico-nftables", "Felix in nftables mode, with its plain routes: policies, natOutgoing", nftablesMode,
			plain(), podPolicies,
			"Policies go by pods' addresses and ports: `egress` to a cluster IP matches nothing.",
			"[What it does when kube-proxy's rules go](migrate.md#calico)."),
		felix("calico-vxlan", "the same with VXLAN", nftablesMode, vxlan(), podPolicies),
		felix("calico-iptables", "the same in iptables mode", iptablesMode, vxlan(), podPolicies),
		felix("calico-host", "Felix in nftables mode, with a host endpoint: policies for the node's ports, preDNAT, and "+
			"doNotTrack for one of them", nftablesMode, plain(), hostPolicies,
			"A node port with doNotTrack refuses connections: untracked packets are not translated."),
	}
}

// Values of Felix' setting nftablesMode.
const nftablesMode, iptablesMode = "Enabled", "Disabled"

// counters is Felix' own record: what its rules have counted that packets of new connections alone reach, those of
// policies and of natOutgoing. How many packets reach others, which Felix' own connections do too, differs.
func counters(mode string) func(context.Context, *world) (string, error) {
	script := `for f in ip ip6; do nft list table $f calico; done | awk '
	/^\tchain/ { chain = $2 }
	!/counter packets/ || /icmp/ || /ct state/ { next }
	chain ~ /-cali-p[io]-/ && /tcp|udp/ || chain ~ /-cali-[tf]w-/ && / drop/ || chain ~ /-cali-nat-outgoing$/ {
		print chain ":" $0
	}'`
	if mode == iptablesMode {
		script = `for s in iptables-save ip6tables-save; do $s -c 2>/dev/null; done | grep -v -e icmp -e ctstate |
	grep -E -e '-A cali-p[io]-.* -p (tcp|udp) ' -e '-A cali-[tf]w-.* -j DROP' -e '-A cali-nat-outgoing '`
	}
	return func(ctx context.Context, w *world) (string, error) { return w.system.run(ctx, script) }
}

// felix is a row about Felix on both nodes. Its policies leave a range of ports open.
func felix(name, what, mode string, by route, policies string, notes ...string) neighbour {
	open := func(first, last int) string { return fmt.Sprintf(policies, fmt.Sprintf(`"%d:%d"`, first, last)) }
	start := func(node, block, block6 string) string {
		return strings.Join([]string{"sh /tmp/felix.sh start", mode, node, block, block6, by.device, by.device6}, " ") + "\n"
	}
	install := "cat >/tmp/felix.sh <<'SCRIPT'\n" + felixScript + "SCRIPT\n"
	attach := func(pod, addr, addr6 string) string {
		return "sh /tmp/felix.sh attach " + pod + " " + addr + " " + addr6 + "\n"
	}
	// The nodes have other routes to each other without Calico, beside which Linux refuses those of VXLAN for IPv6.
	alone := func(block, block6 string) string {
		return "ip route delete " + block + " 2>/dev/null || true\nip -6 route delete " + block6 + " 2>/dev/null || true\n"
	}
	here := alone("10.244.1.0/24", "fd00:244:0:1::/64") + start("node-1", "10.244.1.0/26", "fd00:244:0:1::/122")
	there := alone("10.244.0.0/24", "fd00:244::/64") + start("node-2", "10.244.0.0/26", "fd00:244::/122")
	const kill, change = "sh /tmp/felix.sh kill\n", "changes a policy"
	return neighbour{
		name: name, program: "Calico", what: what,
		packages: []string{"conntrack", "ipset", "iptables", "kmod", "nftables"},
		calico:   strings.ReplaceAll(calicoObjects, "ENCAPSULATION", by.encapsulation) + open(podPort, podPort+1),
		prepare:  install + attach("near", "10.244.0.10", "fd00:244::10") + attach("pod", "10.244.0.2", "fd00:244::2"),
		peers:    []peer{{start: install + attach("far", "10.244.1.10", "fd00:244:0:1::10") + there}},
		events: []event{{nameStart, here}, {"restarts", kill + here},
			{change, "sh /tmp/felix.sh has " + mode + " 8999\n"}},
		changes: map[string]string{change: open(8000, 8999)},
		stop:    event{"ends, and leaves its rules", kill}, notes: notes, record: counters(mode),
		// One node after the other gets its routes.
		drops: []string{nameStart},
	}
}
