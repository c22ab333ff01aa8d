// Package proxies promises the service proxies that the benchmarks compare. Each proxy
// has a node of its own, and every benchmark starts it in the same way. The proxies are
// nftproxy, and beside it either kube-proxy in its two modes or an earlier build of
// nftproxy.
//
// The package measures nothing.
package proxies

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"nftproxy/bench/result"
	"nftproxy/test/aptget"
	"nftproxy/test/child"
	"nftproxy/test/cluster"
)

// Proxy is a program that can be run on a node.
type Proxy struct {
	Name string
	// Ours says that it is nftproxy.
	Ours bool
	// Missing says why the proxy cannot run here; nil if it can.
	Missing error

	command func(*Node) *exec.Cmd
	first   func(context.Context, *child.Process) (First, error)
}

// First describes the load of the first program.
type First struct {
	// Took is the time since the informers had synced.
	Took time.Duration
	At   time.Time
	// Line is nftproxy's log line about the sync; empty for other proxies.
	Line child.Line
}

// Setup is what every benchmark of the proxies needs.
type Setup struct {
	// NFTProxy is the path of the binary.
	NFTProxy string
	// Earlier is the path of an earlier build, which is compared instead of kube-proxy;
	// empty for none.
	Earlier string
	// Limit is how long one measured step may take. The first program is the longest
	// step.
	Limit time.Duration
	// Log takes the messages about failures.
	Log io.Writer
}

// All lists the proxies. It tells their versions to the sink.
func (s Setup) All(ctx context.Context, sink result.Sink) ([]Proxy, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root")
	}
	if s.Earlier != "" {
		return []Proxy{ours(result.NFTProxy, s.NFTProxy), ours(result.Earlier, s.Earlier)}, nil
	}
	sink.Doing("finding kube-proxy, nft and iptables")
	return []Proxy{
		ours(result.NFTProxy, s.NFTProxy), kubeProxy(ctx, result.KubeProxyNFTables, sink), kubeProxy(ctx, result.KubeProxyIPTables, sink),
	}, nil
}

// Start starts it on a node.
func (p *Proxy) Start(n *Node) (*child.Process, error) {
	if p.Missing != nil {
		return nil, p.Missing
	}
	return child.Start(n.Node, p.command(n))
}

// First waits for the first program of a process that Start returned.
func (p *Proxy) First(ctx context.Context, process *child.Process) (First, error) {
	return p.first(ctx, process)
}

// Stop ends a process that Start returned; its rules stay.
func (p *Proxy) Stop(ctx context.Context, process *child.Process) error {
	if !p.Ours {
		// SIGTERM would end the process as well. But a command that it has just started
		// would run on.
		return process.Kill()
	}
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return process.Stop(ctx)
}

// ours is nftproxy with its default periods and without its servers.
func ours(name, binary string) Proxy {
	p := Proxy{Name: name, Ours: true, first: firstOfOurs}
	path, err := filepath.Abs(binary)
	if err == nil {
		_, err = os.Stat(path)
	}
	p.Missing = err
	p.command = func(n *Node) *exec.Cmd {
		return exec.Command(path, "run", "--hostname-override="+n.Name, "--cluster-cidr="+n.clusterCIDR(), "-v=2",
			"--kubeconfig="+n.kubeconfig, "--healthz-bind-address=", "--metrics-bind-address=")
	}
	return p
}

func firstOfOurs(ctx context.Context, p *child.Process) (First, error) {
	l, _, err := p.Await(ctx, 0, child.Line.Synced)
	return First{Took: l.Latency, At: l.At, Line: l}, err
}

// kubeProxy is kube-proxy with its default periods and without its health server. The end
// of the backend's name says its mode.
func kubeProxy(ctx context.Context, name string, sink result.Sink) Proxy {
	mode := name[strings.LastIndex(name, " ")+1:]
	p := Proxy{Name: name, first: firstOfKubeProxy}
	tool, debian := "nft", "nftables"
	if mode == "iptables" {
		tool, debian = "iptables", "iptables"
	}
	toolPath, toolErr := aptget.Command(tool, debian)
	binary, err := cluster.Tool(ctx, "kube-proxy")
	if p.Missing = errors.Join(err, toolErr); p.Missing != nil {
		return p
	}
	sink.Version("kube-proxy", strings.TrimPrefix(FirstLine(exec.CommandContext(ctx, binary, "--version")), "Kubernetes "))
	sink.Version(tool, FirstLine(exec.CommandContext(ctx, toolPath, "--version")))
	p.command = func(n *Node) *exec.Cmd {
		cmd := exec.Command(binary, "--proxy-mode="+mode, "--hostname-override="+n.Name, "--cluster-cidr="+n.clusterCIDR(),
			"--kubeconfig="+n.kubeconfig, "--conntrack-max-per-core=0", "-v=2",
			"--healthz-bind-address=", "--metrics-bind-address=127.0.0.1:10249")
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(toolPath)+":"+os.Getenv("PATH"))
		return cmd
	}
	return p
}

// KubeProxySynced recognises the line that kube-proxy logs after an IPv4 sync. The
// Services of the benchmarks are IPv4.
func KubeProxySynced(l child.Line) bool {
	return l.Has("SyncProxyRules complete", `ipFamily="IPv4"`)
}

// firstOfKubeProxy uses the times at which the lines of kube-proxy's log were read: from
// the sync of the last informer to the end of the first sync.
func firstOfKubeProxy(ctx context.Context, p *child.Process) (First, error) {
	done, mark, err := p.Await(ctx, 0, KubeProxySynced)
	if err != nil {
		return First{}, err
	}
	var synced time.Time
	lines, _ := p.Logged(0)
	for _, l := range lines[:mark] {
		if l.Has("Caches are synced") {
			synced = l.At
		}
	}
	if synced.IsZero() {
		return First{}, errors.New("its log does not tell when the informers had synced")
	}
	return First{Took: done.At.Sub(synced), At: done.At}, nil
}

// FirstLine returns the first line that a command writes. If the command cannot run, it
// returns the reason.
func FirstLine(cmd *exec.Cmd) string {
	out, err := cmd.Output()
	if err != nil {
		return err.Error()
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}
