package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/conntrack"
	capabilities "nftproxy/daemon/process"
	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// starts are the ways to start nftproxy: by setpriv(1), with which rights, and what it keeps of them. TestDeploy
// has the files and mounts of the DaemonSet's container, too.
func starts() map[string]struct {
	setpriv string
	keeps   capabilities.Capabilities
} {
	admin := capabilities.CapabilitiesOf(unix.CAP_NET_ADMIN)
	return map[string]struct {
		setpriv string
		keeps   capabilities.Capabilities
	}{
		"root":      {"", admin | capabilities.CapabilitiesOf(unix.CAP_NET_BIND_SERVICE)},
		"container": {"--no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all,+net_admin", admin},
		"image": {"--no-new-privs --reuid=65532 --regid=0 --clear-groups --inh-caps=-all,+net_admin " +
			"--ambient-caps=-all,+net_admin --bounding-set=-all,+net_admin", admin},
		"user": {"--reuid=65534 --regid=65534 --clear-groups --inh-caps=+net_admin --ambient-caps=+net_admin", admin},
	}
}

// TestPrivileges: no thread of nftproxy has a capability beyond those that it names, whatever it was started
// with, and everything that it does works all the same.
func TestPrivileges(t *testing.T) {
	for name, c := range starts() {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			w := &privilegesWorld{node: n, otherGroup: name == "user", command: func() *exec.Cmd {
				flags := []string{
					"--kubeconfig=" + n.publicKubeconfig(), "--healthz-bind-address=0.0.0.0:10256",
					"--metrics-bind-address=127.0.0.1:10249",
					"--nftproxy-probe-bind-address=127.0.0.1:10266", "--conntrack-tcp-timeout-established=12345s",
					"--conntrack-max-per-core=0",
					"--nodeport-addresses=192.168.100.0/24,192.0.2.0/24",
				}
				if name == "root" {
					flags = append(flags, "--oom-score-adj=-10") // needs CAP_SYS_RESOURCE, where the machine has it
				}
				cmd := n.proxyCommand(flags...)
				if c.setpriv == "" {
					return cmd
				}
				if name == "image" {
					cmd.Args[0] = n.imageBinary()
				}
				return exec.Command("setpriv", append(strings.Fields(c.setpriv), cmd.Args...)...)
			}}
			w.start()
			for _, s := range w.threads() {
				want := capabilities.CapabilityState{Permitted: c.keeps, Effective: c.keeps, Bounding: s.Bounding,
					NoNewPrivileges: true}
				if name != "user" { // who may not change the bounding set, and whose new programs get nothing of it
					want.Bounding = c.keeps
				}
				if s != want {
					t.Errorf("a thread has %+v, want %+v", s, want)
				}
			}
			w.serves()
			w.follows()
			w.forgetsFlows()
			w.forgetsClients()
			w.startsAgain()
			w.onlyExpectedWarnings()
		})
	}
}

type privilegesWorld struct {
	*node
	// otherGroup says that the process is not of the group root.
	otherGroup bool
	command    func() *exec.Cmd
	proxy      *process
	client     *testnet.Namespace
	web        *corev1.Service
}

func (w *privilegesWorld) start() {
	w.t.Helper()
	w.client = w.addClient()
	w.web = w.create(func() *corev1.Service {
		s := service("web", "web")
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
		return s
	}())
	w.runPod("web-1", "web")
	w.proxy = w.run(w.command())
	w.proxy.awaitSync(0)
	for _, server := range []string{"health", "metrics", "probe"} {
		w.proxy.awaitText(0, `"msg":"serving"`, `"server":"`+server+`"`)
	}
}

// publicKubeconfig is the administrator's in a file that every user can read, as the binary is.
func (n *node) publicKubeconfig() string {
	n.t.Helper()
	text, err := os.ReadFile(n.plane.cluster.AdminKubeconfig())
	n.must(err)
	dir := n.t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	n.must(os.WriteFile(file, text, 0o644), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755),
		os.Chmod(filepath.Dir(shared.nftproxy(n.t)), 0o755))
	return file
}

// imageBinary is the binary as the image has it: every user can start it, and it has NET_ADMIN as a permitted file
// capability.
func (n *node) imageBinary() string {
	n.t.Helper()
	text, err := os.ReadFile(shared.nftproxy(n.t))
	n.must(err)
	dir := n.t.TempDir()
	file := filepath.Join(dir, "nftproxy")
	// struct vfs_cap_data of linux/capability.h: revision 2, permitted, inheritable, and the upper words of both.
	value := binary.LittleEndian.AppendUint32(nil, 0x02000000)
	value = append(binary.LittleEndian.AppendUint32(value, 1<<unix.CAP_NET_ADMIN), make([]byte, 12)...)
	n.must(os.WriteFile(file, text, 0o555), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755),
		unix.Setxattr(file, "security.capability", value, 0))
	return file
}

func (w *privilegesWorld) threads() []capabilities.CapabilityState {
	w.t.Helper()
	dirs, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", w.proxy.PID()))
	w.must(err)
	var list []capabilities.CapabilityState
	for _, dir := range dirs {
		s, err := capabilities.ThreadCapabilities(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // The thread has ended.
		}
		w.must(err)
		list = append(list, s)
	}
	if len(list) < 4 {
		w.t.Fatalf("%d threads", len(list))
	}
	return list
}

// serves: packets, the servers, and the kernel's settings.
func (w *privilegesWorld) serves() {
	w.t.Helper()
	w.proxy.until("the pod serves", func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return w.reaches(w.client, protocol, address(w.web, protocol, family), "web-1")
		})
	})
	metrics, loopback := netip.MustParseAddrPort("127.0.0.1:10249"), netip.MustParseAddr("127.0.0.1")
	w.soon("the health ports answer", func() error {
		return w.answers(netip.AddrPortFrom(w.NodeAddrs.V4(), uint16(w.web.Spec.HealthCheckNodePort)), "/", http.StatusOK,
			`"localEndpoints":1`)
	})
	w.must(
		w.answers(netip.AddrPortFrom(w.NodeAddrs.V4(), 10256), "/readyz", http.StatusOK, "ok"),
		w.answers(netip.AddrPortFrom(loopback, 10266), "/readyz", http.StatusOK, "ok"),
		w.answers(metrics, "/metrics", http.StatusOK, "\nnftproxy_conntrack_entries "),
		w.answers(metrics, "/status", http.StatusOK, "web"),
	)
	const setting = "net.netfilter.nf_conntrack_tcp_timeout_established"
	if got, err := w.Node.ReadSysctl(setting); got != "12345" || err != nil {
		w.t.Errorf("%s is %q (%v)", setting, got, err)
	}
}

// follows: a new address of the node serves node ports.
func (w *privilegesWorld) follows() {
	w.t.Helper()
	added := netip.MustParseAddr("192.0.2.77")
	w.must(w.Node.AddAddr("lo", netip.PrefixFrom(added, added.BitLen())))
	w.soon("the node's new address serves", func() error {
		return w.reaches(w.Node, testnet.TCP, netip.AddrPortFrom(added, nodePort(w.web, testnet.TCP)), "web-1")
	})
}

// forgetsFlows: a UDP client with one port goes to the new endpoint when the old one is replaced. Without the
// clean-up the kernel would keep the flow where it was.
func (w *privilegesWorld) forgetsFlows() {
	w.t.Helper()
	one, two := w.addServer("flow-1"), w.addServer("flow-2")
	flow := w.create(service("flow", ""))
	w.publish(slice("flow-4", flow, one.Addrs[0]))
	from, to := netip.MustParseAddrPort("0.0.0.0:4000"), address(flow, testnet.UDP, ip.V4)
	goesTo := func(id string) {
		w.t.Helper()
		w.soon("the flow goes to "+id, func() error {
			a, err := w.client.AskFrom(w.ctx, testnet.UDP, from, to, answerTime)
			if err == nil && a.ID != id {
				err = fmt.Errorf("%q answered", a.ID)
			}
			return err
		})
	}
	goesTo("flow-1")
	w.replace(slice("flow-4", flow, two.Addrs[0]))
	goesTo("flow-2")
}

// forgetsClients: a client that a Service with session affinity remembers goes to the new endpoint.
func (w *privilegesWorld) forgetsClients() {
	w.t.Helper()
	one, two := w.addServer("client-1"), w.addServer("client-2")
	spec := service("clients", "")
	spec.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	clients := w.create(spec)
	w.publish(slice("clients-4", clients, one.Addrs[0]))
	to := address(clients, testnet.TCP, ip.V4)
	w.soon("the client is remembered", func() error { return w.reaches(w.client, testnet.TCP, to, "client-1") })
	mark := w.proxy.Mark()
	w.replace(slice("clients-4", clients, two.Addrs[0]))
	w.proxy.awaitText(mark, "forgot clients")
	w.soon("it goes to the new endpoint", func() error { return w.reaches(w.client, testnet.TCP, to, "client-2") })
}

func (w *privilegesWorld) replace(s *discoveryv1.EndpointSlice) {
	w.t.Helper()
	_, err := w.plane.client.DiscoveryV1().EndpointSlices(w.namespace).Update(w.ctx, s, metav1.UpdateOptions{})
	w.must(err)
}

// startsAgain: the next process takes over the tables, writes nothing, and serves a change.
func (w *privilegesWorld) startsAgain() {
	w.t.Helper()
	w.proxy.stop()
	w.onlyExpectedWarnings()
	w.proxy = w.run(w.command())
	l, _ := w.proxy.awaitSync(0)
	if l.Written == nil || *l.Written != 0 {
		w.t.Errorf("the first sync of the next process: %s", l.Text)
	}
	w.runPod("web-2", "web")
	w.proxy.until("two pods serve", func() error {
		return w.reaches(w.client, testnet.TCP, address(w.web, testnet.TCP, ip.V4), "web-1", "web-2")
	})
}

// onlyExpectedWarnings: the log has no sign of a right that is missing. Who is not of the group root cannot read which
// tables iptables-legacy has.
func (w *privilegesWorld) onlyExpectedWarnings() {
	w.t.Helper()
	lines, _ := w.proxy.Logged(0)
	for _, l := range lines {
		switch {
		case l.Has("net.netfilter.nf_conntrack", conntrack.ErrHostOnly.Error()), l.Has("--oom-score-adj"):
		case w.otherGroup && l.Has("cannot look for kube-proxy", "ip_tables_names", "denied"):
		case l.Level == "WARN" && l.Has("waiting for ") && !l.Has("forbidden"):
		case l.Level == "WARN", l.Level == "ERROR", l.Has("permitted"), l.Has("denied"):
			w.t.Errorf("in the log: %s", l.Text)
		}
	}
}
