package ipvs

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

const (
	nodeName = "node-1"
	port     = 80
	// limit is how long an emulated machine may take for a step. A sync of kube-proxy's under traffic has taken more than
	// 3 minutes.
	limit = 15 * time.Minute
)

// world is a node with Services of two pods, one on the node and one on another node, with a client that is a pod, and
// with a pod that reaches itself by a Service.
type world struct {
	*testing.T
	*testnet.Topology
	api       apiServer
	dir       string
	client    *testnet.Pod
	self      *testnet.Pod
	kubeProxy *child.Process
	nftproxy  *child.Process
	// scheduler is kube-proxy's in IPVS mode; "" stands for its default.
	scheduler string
	// web and loyal have the same pods, loyal has session affinity; hairpin has the pod self.
	web, loyal, hairpin service
	// sources counts the connections that the test has made from each place, pings apart.
	mu      sync.Mutex
	sources map[*testnet.Namespace]int
}

// service is a Service with a cluster IP of each family that end in number.
type service struct {
	name     string
	number   byte
	nodePort uint16
	affinity corev1.ServiceAffinity
}

func (s service) addrs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", s.number)),
		netip.MustParseAddr(fmt.Sprintf("fd00:96::%d", s.number))}
}

// TestTakeover goes from kube-proxy's IPVS mode to nftproxy and back, twice, as docs/migrate.md says, under traffic. No
// connection fails, whether new or open; from the moment on when nftproxy's rules are in force, no new one ends in
// IPVS; and nothing that kube-proxy made is left at the end, and everything of others is.
func TestTakeover(t *testing.T) {
	w := newWorld(t)
	w.startKubeProxy("ipvs")
	w.hasChains()
	w.serves("kube-proxy", w.ways())
	other := "203.0.113.9:8443"
	w.run("ipvsadm", "-A", "-t", other, "-s", "wlc")
	w.run("ipvsadm", "-a", "-t", other, "-r", "192.168.100.2:8443", "-m")
	for round := range 2 {
		old := w.startTraffic("opened in IPVS")
		old.steps(15)
		t.Logf("round %d: nftproxy starts", round)
		w.nftproxy = w.startNftproxy()
		w.run("nftproxy", "proxies", "--await=nftproxy", "--timeout="+limit.String())
		t.Logf("round %d: nftproxy serves", round)
		before, made := w.ipvsConnections(), old.made.Load()
		both := w.startTraffic("opened beside kube-proxy")
		both.steps(3)
		if more, all := w.ipvsConnections()-before, old.made.Load()-made+both.made.Load(); int64(more)*4 > all {
			t.Errorf("round %d: %d of %d connections were made by IPVS since nftproxy's rules are in force", round, more, all)
		} else {
			t.Logf("round %d: %d of %d connections were made by IPVS since nftproxy's rules are in force", round, more, all)
		}
		old.steps(3)
		must(t, w.kubeProxy.Kill())
		<-w.kubeProxy.Exited()
		w.run("ipvsadm", "-A", "-f", "7", "-s", "rr") // a mark would confuse kube-proxy

		out, err := w.output("nftproxy", "cleanup", "--kube-proxy")
		if err == nil || !strings.Contains(out, "still open") {
			t.Errorf("round %d: clean-up with open connections: %v\n%s", round, err, out)
		}
		t.Logf("clean-up with open connections:\n%s", out)
		old.steps(3)
		both.steps(3)
		if chains := w.run("iptables-save") + w.run("ip6tables-save"); strings.Contains(chains, "KUBE-SERVICES") {
			t.Errorf("round %d: chains are left:\n%s", round, chains)
		}
		after := w.startTraffic("opened in nftproxy")
		old.end()
		// the node's own have a Service's address as their source
		both.end()
		out = w.run("nftproxy", "cleanup", "--kube-proxy", "--end-connections") // IPVS remembers datagrams for minutes
		t.Logf("clean-up without them:\n%s", out)
		w.nothingLeft(other)
		w.serves("nftproxy", w.pings())
		after.steps(3)

		w.run("ipvsadm", "-D", "-f", "7")
		w.startKubeProxy("ipvs")
		w.run("nftproxy", "proxies", "--await=kube-proxy", "--timeout="+limit.String())
		stop, cancel := context.WithTimeout(t.Context(), limit)
		must(t, w.nftproxy.Stop(stop))
		cancel()
		after.steps(3)
		w.run("nftproxy", "cleanup")
		before = w.ipvsConnections()
		after.steps(3)
		if now := w.ipvsConnections(); now == before {
			t.Errorf("round %d: no new connection ends in IPVS after the way back", round)
		}
		after.end()
	}
}

func newWorld(t *testing.T) *world {
	for _, command := range []string{"ipvsadm", "ipset", "kube-proxy", "nftproxy", "xtables-nft-multi"} {
		if _, err := exec.LookPath(command); err != nil {
			t.Skipf("make test-kernels PACKAGES=test/ipvs runs this, on machines that have %s", command)
		}
	}
	w := newNode(t)
	w.web = service{"web", 10, 30080, corev1.ServiceAffinityNone}
	w.loyal = service{"loyal", 11, 30081, corev1.ServiceAffinityClientIP}
	w.hairpin = service{"hairpin", 12, 30082, corev1.ServiceAffinityNone}
	for _, s := range []service{w.web, w.loyal, w.hairpin} {
		w.api.services = append(w.api.services, s.object())
	}
	var err error
	w.client, err = w.AddPod("client")
	must(t, err)
	for _, add := range []struct {
		name string
		pod  func(string, ...netip.Addr) (*testnet.Pod, error)
		of   []service
	}{{"near", w.AddPod, []service{w.web, w.loyal}}, {"far", w.AddRemotePod, []service{w.web, w.loyal}},
		{"self", w.AddPod, []service{w.hairpin}}} {
		pod, err := add.pod(add.name)
		must(t, err)
		if add.name == "self" {
			w.self = pod
		}
		for _, a := range pod.Addrs {
			for _, s := range add.of {
				w.api.slices = append(w.api.slices, endpointSlice(s.name, add.name, a))
			}
			for _, protocol := range []string{testnet.TCP, testnet.UDP} {
				server, err := pod.NS.Serve(protocol, netip.AddrPortFrom(a, 8080), add.name)
				must(t, err)
				t.Cleanup(func() { server.Close() })
			}
		}
	}
	w.publish()
	return w
}

// newNode makes a node without Services.
func newNode(t *testing.T) *world {
	w := &world{T: t, Topology: testnet.NewForTest(t, testnet.Config{}), dir: t.TempDir(),
		sources: map[*testnet.Namespace]int{}}
	var addresses []corev1.NodeAddress
	for _, a := range w.NodeAddrs {
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	w.api.node = corev1.Node{TypeMeta: kind("Node", "v1"), ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "1"},
		Status: corev1.NodeStatus{Addresses: addresses}}
	if program, err := exec.LookPath("xtables-nft-multi"); err == nil {
		for _, command := range []string{"iptables", "ip6tables"} {
			for _, suffix := range []string{"", "-save", "-restore"} {
				must(t, os.Symlink(program, filepath.Join(w.dir, command+suffix)))
			}
		}
	}
	return w
}

// publish has the API server and the manifests ready for the proxies.
func (w *world) publish() {
	must(w.T, os.Mkdir(filepath.Join(w.dir, "manifests"), 0o755))
	w.writeManifest("node", w.api.node)
	for _, s := range w.api.services {
		w.writeManifest("service-"+s.Name, s)
	}
	for _, s := range w.api.slices {
		w.writeManifest("slice-"+s.Name, s)
	}
	listener, err := w.Node.Listen(w.Context(), "tcp", "127.0.0.1:8001")
	must(w.T, err)
	server := &http.Server{Handler: &w.api, ReadHeaderTimeout: limit}
	go server.Serve(listener)
	w.Cleanup(func() { server.Close() })
}

func (s service) object() corev1.Service {
	object := corev1.Service{
		TypeMeta: kind("Service", "v1"), ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: "default",
			UID: types.UID(s.name)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack), SessionAffinity: s.affinity,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
		},
	}
	if s.affinity == corev1.ServiceAffinityClientIP {
		object.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10800))}}
	}
	for _, a := range s.addrs() {
		object.Spec.ClusterIPs = append(object.Spec.ClusterIPs, a.String())
	}
	object.Spec.ClusterIP = object.Spec.ClusterIPs[0]
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{
			Name: strings.ToLower(string(protocol)), Protocol: protocol, Port: port, TargetPort: intstr.FromInt32(8080),
			NodePort: int32(s.nodePort),
		})
	}
	return object
}

// endpointSlice has the node's name: kube-proxy's IPVS mode has only pods of its node reach themselves.
func endpointSlice(service, pod string, a netip.Addr) discoveryv1.EndpointSlice {
	family, node := discoveryv1.AddressTypeIPv4, nodeName
	if a.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	if pod == "far" {
		node = "node-2"
	}
	name := fmt.Sprintf("%s-%s-%s", service, pod, strings.ToLower(string(family)))
	slice := discoveryv1.EndpointSlice{
		TypeMeta: kind("EndpointSlice", "discovery.k8s.io/v1"),
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name),
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{a.String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(strings.ToLower(string(protocol))),
			Protocol: &protocol, Port: new(int32(8080))})
	}
	return slice
}

// writeManifest writes an object for nftproxy, in place of that of this name.
func (w *world) writeManifest(name string, object any) {
	text, err := yaml.Marshal(object)
	must(w.T, err)
	file := filepath.Join(w.dir, "new.yaml")
	must(w.T, os.WriteFile(file, text, 0o644))
	must(w.T, os.Rename(file, filepath.Join(w.dir, "manifests", name+".yaml")))
}

func (w *world) startKubeProxy(mode string) {
	w.Helper()
	if _, err := os.Stat("/proc/net/ip_vs"); mode == "ipvs" && err != nil {
		w.Skip("this kernel has no IPVS")
	}
	const kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: " +
		"c}}]\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:8001'}}]\n"
	config := `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ` + mode + `
clientConnection: {kubeconfig: ` + filepath.Join(w.dir, "kubeconfig") + `, contentType: application/json, acceptContentTypes: application/json}
clusterCIDR: "` + w.ClusterCIDRs[0].String() + "," + w.ClusterCIDRs[1].String() + `"
conntrack: {maxPerCore: 0}
ipvs: {scheduler: "` + w.scheduler + `", excludeCIDRs: [203.0.113.0/24]}
`
	must(w.T, os.WriteFile(filepath.Join(w.dir, "kubeconfig"), []byte(kubeconfig), 0o600))
	must(w.T, os.WriteFile(filepath.Join(w.dir, "config.conf"), []byte(config), 0o600))
	w.kubeProxy = w.start("kube-proxy", "--config="+filepath.Join(w.dir, "config.conf"), "--hostname-override="+nodeName,
		"-v=2")
}

func (w *world) startNftproxy() *child.Process {
	w.Helper()
	return w.start("nftproxy", "run", "--nftproxy-manifests="+filepath.Join(w.dir, "manifests"), "--hostname-override="+
		nodeName,
		"--cluster-cidr="+w.ClusterCIDRs[0].String()+","+w.ClusterCIDRs[1].String(), "--conntrack-max-per-core=0",
		"--metrics-bind-address=", "--healthz-bind-address=", "--nftproxy-answer-ping")
}

func (w *world) command(name string, args ...string) *exec.Cmd {
	path := filepath.Join(w.dir, name)
	if _, err := os.Stat(path); err != nil {
		path = name
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "PATH="+w.dir+":"+os.Getenv("PATH"))
	return cmd
}

func (w *world) start(name string, args ...string) *child.Process {
	w.Helper()
	p, err := child.Start(w.Node, w.command(name, args...))
	must(w.T, err)
	w.Cleanup(func() {
		_ = p.Kill() // it may have ended
		if w.Failed() {
			w.Logf("%s:\n%s", name, p.Tail(100))
		}
	})
	return p
}

// output runs a command on the node.
func (w *world) output(name string, args ...string) (string, error) {
	var out strings.Builder
	cmd := w.command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := w.Node.Run(cmd)
	return out.String(), err
}

func (w *world) run(name string, args ...string) string {
	w.Helper()
	out, err := w.output(name, args...)
	if err != nil {
		w.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

// hasChains waits until kube-proxy has written its rules of iptables. It does so after its virtual servers, which serve
// before. A connection of the node that is opened between the two is reset when the rules come, without any nftproxy:
// only then does the kernel track it and give it the node's address as its source.
func (w *world) hasChains() {
	w.Helper()
	deadline := time.Now().Add(limit)
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		for !strings.Contains(w.run(save, "-t", "nat"), "-A KUBE-SERVICES ") {
			if w.kubeProxy.Ended() || time.Now().After(deadline) {
				w.Fatalf("kube-proxy has no rules: %s", w.run(save, "-t", "nat"))
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// serves waits until these addresses answer.
func (w *world) serves(who string, ways []way) {
	w.Helper()
	deadline := time.Now().Add(limit)
	for _, to := range ways {
		for {
			a, err := w.ask(to, time.Second)
			if err == nil && a.Outcome == testnet.Answered {
				break
			}
			if time.Now().After(deadline) {
				w.Fatalf("%s does not serve %s: %v %v", who, to, a.Outcome, err)
			}
			if err != nil || a.Outcome != testnet.TimedOut {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}
}

// ipvsConnections is how many connections IPVS has made on the node. /proc/net/ip_vs_stats has a sum that the kernel
// renews every two seconds (net/netfilter/ipvs/ip_vs_est.c); the counters of the processors are those of this moment.
// Below them stand a sum, ~, and rates.
func (w *world) ipvsConnections() (sum int) {
	w.Helper()
	out := w.run("cat", "/proc/net/ip_vs_stats_percpu")
	counters, _, _ := strings.Cut(out, "~")
	processors := 0
	for line := range strings.Lines(counters) {
		var cpu, n int
		if _, err := fmt.Sscanf(line, "%x %x", &cpu, &n); err == nil { // the headings have no number first
			sum, processors = sum+n, processors+1
		}
	}
	if processors == 0 {
		w.Fatalf("ip_vs_stats_percpu: %s", out)
	}
	return sum
}

// nothingLeft: everything of kube-proxy's is gone, and nothing of others.
func (w *world) nothingLeft(other string) {
	w.Helper()
	if _, err := w.Node.Handle().LinkByName("kube-ipvs0"); err == nil {
		w.Error("kube-ipvs0 is left")
	}
	if sets := w.run("ipset", "list", "-n"); strings.Contains(sets, "KUBE-") {
		w.Errorf("ipsets are left: %s", sets)
	}
	chains := w.run("iptables-save") + w.run("ip6tables-save")
	for line := range strings.Lines(chains) {
		if strings.Contains(line, "KUBE-") && !strings.Contains(line, "KUBE-MARK-MASQ") {
			w.Errorf("left in iptables: %s", line)
		}
	}
	servers := w.run("ipvsadm", "-S", "-n")
	want := "-A -f 7 -s rr\n-A -t " + other + " -s wlc\n-a -t " + other + " -r 192.168.100.2:8443 -m -w 1\n"
	if sorted(servers) != sorted(want) {
		w.Errorf("virtual servers:\n%swant\n%s", servers, want)
	}
	if out := w.run("nftproxy", "proxies"); strings.Contains(out, "ipvs") {
		w.Errorf("nftproxy proxies: %s", out)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
