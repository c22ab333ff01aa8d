package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"nftproxy/test/lib/testnet"
)

// TestListeners: a proxy with its default flags and the DaemonSet's probe server listens at the sockets that
// docs/security.md lists, and at no other.
func TestListeners(t *testing.T) {
	n := newNode(t)
	spec := service("web", "web")
	spec.Spec.Type, spec.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer,
		corev1.ServiceExternalTrafficPolicyLocal
	web := n.create(spec)
	n.runPod("web-1", "web")
	p := n.run(exec.Command(shared.nftproxy(t), "run", "--hostname-override="+n.name, "--cluster-cidr="+n.clusterCIDR(),
		"-v=2",
		"--kubeconfig="+n.plane.cluster.AdminKubeconfig(), "--nftproxy-probe-bind-address=127.0.0.1:10266",
		"--nodeport-addresses=primary,localhost"))
	p.awaitSync(0)
	port := uint16(web.Spec.HealthCheckNodePort)
	for _, at := range []netip.AddrPort{
		netip.MustParseAddrPort("127.0.0.1:10249"), netip.MustParseAddrPort("127.0.0.1:10266"),
		netip.AddrPortFrom(n.NodeAddrs.V4(), 10256),
		netip.AddrPortFrom(n.NodeAddrs.V4(), port), netip.AddrPortFrom(n.NodeAddrs.V6(), port),
	} {
		n.soon("the server at "+at.String(), func() error { return n.answers(at, "/healthz", http.StatusOK, "") })
	}
	for i, protocol := range []string{testnet.TCP, testnet.UDP} {
		for _, a := range []string{"127.0.0.1", "::1"} {
			at := netip.AddrPortFrom(netip.MustParseAddr(a), uint16(web.Spec.Ports[i].NodePort))
			n.soon("the node port at "+at.String(), func() error {
				answer, err := n.Node.Ask(t.Context(), protocol, at, time.Second)
				if err == nil && answer.ID != "web-1" {
					err = fmt.Errorf("%+v", answer)
				}
				return err
			})
		}
	}
	onLoopback := regexp.MustCompile(fmt.Sprintf(`^(tcp|udp) (127\.0\.0\.1|\[::1\]):(%d|%d)$`, web.Spec.Ports[0].NodePort,
		web.Spec.Ports[1].NodePort))
	nodePorts := regexp.MustCompile(`^tcp .*:` + strconv.Itoa(int(port)) + `$`)
	mark := regexp.MustCompile(`^unix @nftproxy-table-[0-9a-f]{64}-[A-Z2-7]+$`)
	var got []string
	for _, l := range p.listeners() {
		switch {
		case nodePorts.MatchString(l):
			l = "tcp NODE:HEALTHCHECKNODEPORT"
		case onLoopback.MatchString(l):
			l = onLoopback.ReplaceAllString(l, "$1 LOOPBACK:NODEPORT")
		case mark.MatchString(l):
			l = "unix @nftproxy-table-*"
		case strings.HasPrefix(l, "unix @nftproxy-here-"):
			continue // It is there for the time of a look for kube-proxy, and nothing reads from it.
		}
		got = append(got, l)
	}
	slices.Sort(got)
	if diff := cmp.Diff(documentedListeners(t), slices.Compact(got)); diff != "" {
		t.Errorf("listeners (-docs/security.md +process):\n%s", diff)
	}
	p.stop()
}

// documentedListeners reads the table in docs/security.md, sorted.
func documentedListeners(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Listeners\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var list []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1) {
		list = append(list, row[1])
	}
	slices.Sort(list)
	return list
}

// listeners lists the sockets at which the process takes connections or packets, as the kernel shows them.
func (p *process) listeners() []string {
	p.t.Helper()
	inodes := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "socket:[") {
			inodes[strings.Trim(target, "socket:[]")] = true
		}
	}
	const inode, unixInode = 9, 6
	var list []string
	for file, column := range map[string]int{
		"tcp": inode, "tcp6": inode, "udp": inode, "udp6": inode, "udplite": inode, "udplite6": inode, "raw": inode,
		"raw6": inode,
		"icmp": inode, "icmp6": inode, "packet": 8, "unix": unixInode,
	} {
		for _, words := range p.socketTable(file) {
			if len(words) > column && inodes[words[column]] {
				if text := listener(file, words); text != "" {
					list = append(list, text)
				}
			}
		}
	}
	return list
}

// socketTable reads a file of /proc/PID/net, without its heading.
func (p *process) socketTable(file string) [][]string {
	p.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", p.PID(), file))
	if os.IsNotExist(err) {
		return nil // The kernel has no such protocol.
	}
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	var rows [][]string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		rows = append(rows, strings.Fields(lines.Text()))
	}
	if err := lines.Err(); err != nil || len(rows) == 0 {
		p.t.Fatalf("%s: %d rows, %v", file, len(rows), err)
	}
	return rows[1:]
}

// listener describes a row if the socket takes what strangers send. TCP has a state for that (0A); a Unix socket
// with a name does; any other socket that has no peer does.
func listener(file string, words []string) string {
	const listening, none = "0A", ":0000"
	switch {
	case file == "packet":
		return file
	case file == "unix" && len(words) > 7:
		return file + " " + words[7]
	case file == "unix":
		return ""
	case strings.HasPrefix(file, "tcp"):
		if words[3] != listening {
			return ""
		}
	case !strings.HasSuffix(words[2], none):
		return ""
	}
	return strings.TrimSuffix(file, "6") + " " + socketAddress(words[1])
}

// socketAddress reads an address as the kernel writes it: words of 32 bits in the machine's order of bytes, and
// the port.
func socketAddress(text string) string {
	host, port, _ := strings.Cut(text, ":")
	var bytes []byte
	for word := range slices.Chunk([]byte(host), 8) {
		n, _ := strconv.ParseUint(string(word), 16, 32)
		bytes = append(bytes, byte(n), byte(n>>8), byte(n>>16), byte(n>>24)) // amd64 and arm64 are little-endian
	}
	addr, _ := netip.AddrFromSlice(bytes)
	number, _ := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(addr, uint16(number)).String()
}
