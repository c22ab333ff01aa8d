// Package proxies promises the service proxies that the benchmarks compare. Each proxy
// has a node of its own, and every benchmark starts it in the same way. The proxies are
// nftproxy, and beside it either kube-proxy in its two modes, each with two versions of
// the command that it runs, or an earlier build of nftproxy.
//
// The package measures nothing.
package proxies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nftproxy/bench/result"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
)

// Proxy is a program that can be run on a node.
type Proxy struct {
	Name string
	// Ours says that it is nftproxy.
	Ours bool
	// Silent says that the kernel gives no notice of the proxy's rules.
	Silent bool
	// Missing says why the proxy cannot run here; nil if it can.
	Missing error

	command func(*Node) *exec.Cmd
	first   func(context.Context, *child.Process) (First, error)
	clear   func(*Node) error
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
	// Flags are more flags of nftproxy run; the earlier build does not get them.
	Flags []string
	// KubeProxy is the minor release of kube-proxy, such as 1.36; empty for that of the
	// control plane.
	KubeProxy string
	// Only names the proxies to measure; empty for all.
	Only []string
	// Limit is how long one measured step may take. The first program is the longest
	// step.
	Limit time.Duration
	// Log takes the messages about failures.
	Log io.Writer
}

// Wants says whether a proxy is to be measured.
func (s Setup) Wants(name string) bool { return len(s.Only) == 0 || slices.Contains(s.Only, name) }

// Validate reports an unknown name in Only.
func (s Setup) Validate() error {
	known := append(result.KubeProxies(), result.NFTProxy)
	for _, name := range s.Only {
		if !slices.Contains(known, name) {
			return fmt.Errorf("no proxy is called %q: want %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// All lists the proxies. It tells their versions to the sink.
func (s Setup) All(ctx context.Context, sink result.Sink) ([]Proxy, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root")
	}
	if s.Earlier != "" {
		return []Proxy{ours(result.NFTProxy, s.NFTProxy, s.Flags...), ours(result.Earlier, s.Earlier)}, nil
	}
	sink.Doing("finding kube-proxy, nft and iptables")
	var list []Proxy
	if s.Wants(result.NFTProxy) {
		list = append(list, ours(result.NFTProxy, s.NFTProxy, s.Flags...))
	}
	for _, k := range []struct {
		name, mode string
		find       func() (commands, error)
	}{
		{result.KubeProxyNFTables, "nftables", systemNFT},
		{result.KubeProxyNewNFT, "nftables", newNFT},
		{result.KubeProxyLegacy, "iptables", iptablesLegacy},
		{result.KubeProxyIPTables, "iptables", iptablesNFT},
	} {
		if s.Wants(k.name) && s.KubeProxy == "1.38" && k.mode == "iptables" {
			list = append(list, Proxy{Name: k.name, Silent: Silent(k.name),
				Missing: errors.New("hack/kube-proxy-1.38 is built without iptables")})
		} else if s.Wants(k.name) {
			list = append(list, s.kubeProxy(ctx, k.name, k.mode, k.find, sink))
		}
	}
	return list, nil
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

// Clear removes all rules from a node.
func (p *Proxy) Clear(n *Node) error { return p.clear(n) }

// ours is nftproxy with its default periods and without its servers.
func ours(name, binary string, flags ...string) Proxy {
	p := Proxy{Name: name, Ours: true, first: firstOfOurs, clear: flushNFTables}
	path, err := filepath.Abs(binary)
	if err == nil {
		_, err = os.Stat(path)
	}
	p.Missing = err
	p.command = func(n *Node) *exec.Cmd {
		return exec.Command(path, append([]string{
			"run", "--hostname-override=" + n.Name, "--cluster-cidr=" + n.clusterCIDR(), "-v=2",
			"--kubeconfig=" + n.kubeconfig, "--healthz-bind-address=", "--metrics-bind-address=",
		}, flags...)...)
	}
	return p
}

func firstOfOurs(ctx context.Context, p *child.Process) (First, error) {
	l, _, err := p.Await(ctx, 0, child.Line.Synced)
	return First{Took: time.Duration(l.Latency), At: l.At, Line: l}, err
}

// kubeProxy is kube-proxy with its default periods and without its health server.
func (s Setup) kubeProxy(ctx context.Context, name, mode string, find func() (commands, error),
	sink result.Sink) Proxy {
	p := Proxy{Name: name, Silent: Silent(name), first: firstOfKubeProxy}
	tools, toolErr := find()
	binary, err := controlplane.KubeProxy(ctx, s.KubeProxy)
	if p.Missing = errors.Join(err, toolErr); p.Missing != nil {
		return p
	}
	p.clear = tools.clear
	sink.Version("kube-proxy", strings.TrimPrefix(FirstLine(exec.CommandContext(ctx, binary, "--version")), "Kubernetes "))
	sink.Version(tools.name, FirstLine(exec.CommandContext(ctx, filepath.Join(tools.dir, tools.asked), "--version")))
	p.command = func(n *Node) *exec.Cmd {
		cmd := exec.Command(binary, "--proxy-mode="+mode, "--hostname-override="+n.Name, "--cluster-cidr="+n.clusterCIDR(),
			"--kubeconfig="+n.kubeconfig, "--conntrack-max-per-core=0", "-v=2",
			"--healthz-bind-address=", "--metrics-bind-address=127.0.0.1:10249")
		cmd.Env = append(os.Environ(), "PATH="+tools.dir+":"+os.Getenv("PATH"))
		return cmd
	}
	return p
}

// Silent says that the kernel gives no notice of what a proxy writes: it does so of
// nftables only.
func Silent(name string) bool { return name == result.KubeProxyLegacy }

// KubeProxySynced recognises the line that kube-proxy logs after an IPv4 sync. The
// Services of the benchmarks are IPv4.
func KubeProxySynced(l child.Line) bool {
	return l.Has("SyncProxyRules complete", `ipFamily="IPv4"`)
}

// SyncBegan says when a sync began, of the line that kube-proxy logs after it; zero if the
// line does not tell.
func SyncBegan(l child.Line) time.Time {
	_, rest, _ := strings.Cut(l.Text, `elapsed="`)
	text, _, _ := strings.Cut(rest, `"`)
	elapsed, err := time.ParseDuration(text)
	if err != nil {
		return time.Time{}
	}
	return l.At.Add(-elapsed)
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
