package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"nftproxy/test/lib/testnet"
)

// nodeConfig says how a node is.
type nodeConfig struct {
	Name string
	// Dir takes the node's files; Cgroup is its cgroup in every hierarchy.
	Dir, Cgroup string
	// Init is the command line that calls InitMachine.
	Init []string
	// Addrs are the node's addresses, the first of each family its InternalIP.
	Addrs []netip.Addr
	// Labels are those that the kubelet gives to its Node.
	Labels map[string]string
	// Kubeconfig is that of the user system:node:NAME; Authority is the file with
	// the certificate of those who sign the kubelet's clients.
	Kubeconfig, Authority string
	// DNS are the addresses of the cluster's name service.
	DNS []netip.Addr
	// Images are archives with the images that the node has.
	Images   []string
	Software Software
	Network  Network
}

// node is a node whose kubelet runs.
type node struct {
	*machine
	// PodCIDRs are the ranges of the node's pods, which are the Node's but for OtherRanges.
	PodCIDRs []netip.Prefix
	config   nodeConfig
}

// startNode starts a node on a network namespace that reaches the API server. It
// returns once the node has its images and the API server calls it ready.
func startNode(ctx context.Context, ns *testnet.Namespace, client kubernetes.Interface,
	config nodeConfig) (*node, error) {
	description, err := describe(config)
	if err != nil {
		return nil, err
	}
	m, err := startMachine(ctx, ns, description)
	if err != nil {
		return nil, err
	}
	n := &node{machine: m, config: config}
	if err := n.join(ctx, client); err != nil {
		return nil, errors.Join(fmt.Errorf("node %s: %w", config.Name, err), m.Close())
	}
	return n, nil
}

func describe(config nodeConfig) (machineConfig, error) {
	kubelet, err := kubeletConfig(config.Cgroup, config.DNS)
	if err != nil {
		return machineConfig{}, err
	}
	files := map[string]string{
		"/etc/containerd/config.toml": containerdConfig(),
		kubeletDir + "/kubelet.json":  kubelet,
		"/etc/hostname":               config.Name + "\n",
		"/etc/hosts":                  "127.0.0.1 localhost\n::1 localhost\n",
		"/etc/resolv.conf":            "# The cluster has no name service outside.\n",
		"/etc/machine-id":             machineID(config.Name),
	}
	for to, from := range map[string]string{"kubeconfig": config.Kubeconfig, "ca.crt": config.Authority} {
		b, err := os.ReadFile(from)
		if err != nil {
			return machineConfig{}, err
		}
		files[filepath.Join(kubeletDir, to)] = string(b)
	}
	var addrs []string
	for _, a := range config.Addrs {
		addrs = append(addrs, a.String())
	}
	var labels []string
	for key, value := range config.Labels {
		labels = append(labels, key+"="+value)
	}
	plugins := filepath.Join(config.Software.Debian, "usr/lib/cni")
	if config.Network == ForeignNetwork {
		plugins = config.Software.Tools
	}
	env := environment()
	return machineConfig{
		Name: config.Name, Cgroup: config.Cgroup, Dir: config.Dir, Init: config.Init,
		Disk: []string{"/var/lib/kubelet", "/var/lib/containerd", "/var/log/pods", "/var/log/containers", cniDir},
		Binds: map[string]string{
			toolsDir:       config.Software.Tools,
			debianDir:      config.Software.Debian,
			"/opt/cni/bin": plugins,
		},
		Files:   files,
		Sysctls: sysctls(),
		Services: []machineService{
			{Name: "containerd", Args: []string{debianDir + "/usr/bin/containerd"}, Env: env},
			{Name: "kubelet", Env: env, Args: []string{
				toolsDir + "/kubelet",
				"--config=" + kubeletDir + "/kubelet.json",
				"--kubeconfig=" + kubeletDir + "/kubeconfig",
				"--hostname-override=" + config.Name,
				"--node-ip=" + strings.Join(addrs, ","),
				"--node-labels=" + strings.Join(labels, ","),
			}},
		},
	}, nil
}

// environment is that of the services, and of a person on the node.
func environment() []string {
	return []string{"HOME=/root", "PATH=" + strings.Join([]string{
		debianDir + "/usr/sbin", debianDir + "/usr/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, ":")}
}

// Shell is a command of a shell on the node, which a person there may give, for the
// caller to start.
func (n *node) Shell(ctx context.Context, script string) *exec.Cmd {
	return n.Command(ctx, append(append([]string{"/usr/bin/env"}, environment()...), "/bin/sh", "-c", script)...)
}

// machineID is 32 hexadecimal digits, as machine-id(5) wants them.
func machineID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16]) + "\n"
}

// join brings the node from started services to ready.
func (n *node) join(ctx context.Context, client kubernetes.Interface) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.importImages(ctx) })
	group.Go(func() error {
		object, err := n.await(ctx, client, func(o *corev1.Node) bool { return len(o.Spec.PodCIDRs) > 0 })
		if err != nil {
			return fmt.Errorf("wait for ranges of pod addresses: %w", err)
		}
		for _, cidr := range object.Spec.PodCIDRs {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				return err
			}
			if n.config.Network == OtherRanges {
				p = otherRange(p)
			}
			n.PodCIDRs = append(n.PodCIDRs, p)
		}
		if n.config.Network == ForeignNetwork { // a pod of it writes the file
			return nil
		}
		return n.writeCNI()
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return nil
}

// AwaitReady returns once the API server calls the node ready.
func (n *node) AwaitReady(ctx context.Context, client kubernetes.Interface) error {
	_, err := n.await(ctx, client, func(o *corev1.Node) bool {
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("wait until node %s is ready: %w", n.config.Name, err)
	}
	return nil
}

// writeCNI writes the file whose arrival makes containerd's network ready.
func (n *node) writeCNI() error {
	text, err := cniConfig(n.PodCIDRs)
	if err != nil {
		return err
	}
	path := filepath.Join(n.Disk(cniDir), "10-pods.conflist")
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// await returns the Node object once it is as wanted.
func (n *node) await(ctx context.Context, client kubernetes.Interface,
	wanted func(*corev1.Node) bool) (*corev1.Node, error) {
	list := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll,
		fields.OneTermEqualSelector("metadata.name", n.config.Name))
	event, err := watchtools.UntilWithSync(ctx, list, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
		o, ok := e.Object.(*corev1.Node)
		return ok && e.Type != watch.Deleted && wanted(o), nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w; %s; the services that ended: %s; the log of the kubelet:\n%s", err, n.config.Name,
			n.machine.Tail(), n.logTail("kubelet"))
	}
	return event.Object.(*corev1.Node), nil
}

// logTail is the last 4 KiB of a service's log.
func (n *node) logTail(service string) string {
	b, err := os.ReadFile(n.LogPath(service))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}

// importImages imports the archives into containerd once that answers.
func (n *node) importImages(ctx context.Context) error {
	ctr := debianDir + "/usr/bin/ctr"
	if err := n.awaitContainerd(ctx, ctr); err != nil {
		return err
	}
	for _, archive := range n.config.Images {
		f, err := os.Open(archive)
		if err != nil {
			return err
		}
		cmd := n.Command(ctx, ctr, "--namespace", "k8s.io", "images", "import", "-")
		cmd.Stdin = f
		out, err := cmd.CombinedOutput()
		_ = f.Close() // opened for reading: nothing can be lost
		if err != nil {
			return fmt.Errorf("import %s: %w: %s", archive, err, out)
		}
	}
	return nil
}

// awaitContainerd asks containerd until it answers: the socket's arrival says less.
func (n *node) awaitContainerd(ctx context.Context, ctr string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := n.Run(ctx, ctr, "--connect-timeout", "2s", "version")
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for containerd: %w; last answer: %w; its log:\n%s", ctx.Err(), err, n.logTail("containerd"))
		}
	}
}
