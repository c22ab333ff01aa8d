// Package controlplane runs a real Kubernetes control plane for tests: etcd, kube-apiserver and kube-controller-manager
// of the releases that hack/tools pins, with certificates, RBAC and Node authorization as in production, inside a
// network namespace of the caller's choice. It has objects and events as such a control plane stores and sends them.
//
// It does not run nodes: there is no kubelet. Without Config.PodCIDRs there is no scheduler either: a test binds pods
// to nodes itself and writes their status; the EndpointSlice controller does the rest. It does not create namespaces or
// interfaces either, but for StartInNamespace.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

// Config says where and how a control plane runs. The zero value works: the control plane
// then runs on loopback in the caller's network namespace, with dual-stack service
// addresses.
type Config struct {
	// Dir takes data, certificates, kubeconfigs and one log per component (etcd.log,
	// kube-apiserver.log, kube-controller-manager.log). If Dir is that of a stopped
	// control plane, the new one continues with its data, at another port and with
	// certificates of its own. Empty: a temporary directory that Stop removes.
	Dir string
	// NetNS is the path of the network namespace that the processes run in, such as
	// /run/netns/node. Its loopback interface must be up. Empty: the namespace of the
	// thread that calls Start. Any other namespace needs CAP_SYS_ADMIN.
	NetNS string
	// ListenAddr is the address that the API server listens on, on a port of its own choice. It must be up in NetNS.
	// Zero: 127.0.0.1. Unless it is a loopback address, the service default/kubernetes gets it as its endpoint.
	ListenAddr netip.Addr
	// ServiceCIDRs are the ranges of cluster IPs, at most one of each family. The range
	// of ListenAddr's family comes first. Empty: 10.96.0.0/12 and fd00:10:96::/108.
	ServiceCIDRs []netip.Prefix
	// NodePortRange are the ports that Services may have on nodes, "FIRST-LAST". Empty: 30000-32767.
	NodePortRange string
	// PodCIDRs are the ranges of pod addresses, at most one of each family. With them the control plane is one for
	// kubelets: the nodes get a /24 and a /64 each, a scheduler runs, and the API server speaks to kubelets.
	PodCIDRs []netip.Prefix
	// Controllers are the controllers to run, by the names that kube-controller-manager's --controllers knows.
	// Empty: DefaultControllers, or with PodCIDRs all that kube-controller-manager runs by default.
	Controllers []string
	// ControllerFlags are further flags of kube-controller-manager. They win over those that it gets here.
	ControllerFlags []string
	// APIServer is the minor release of kube-apiserver, one of those that hack/build-tools.sh knows, such as 1.29. Such a
	// control plane has no controllers: they must not be newer than the API server. Empty: the newest, with controllers.
	APIServer string
	// Log takes progress and the unexpected deaths of components. Nil: nothing is
	// written.
	Log io.Writer
}

// DefaultControllers returns the controllers that Services, EndpointSlices and service
// accounts need. They include the garbage collector, which removes the EndpointSlices of
// a deleted Service.
func DefaultControllers() []string {
	return []string{
		"endpointslice-controller",
		"endpointslice-mirroring-controller",
		"garbage-collector-controller",
		"namespace-controller",
		"root-ca-certificate-publisher-controller",
		"service-cidr-controller",
		"serviceaccount-controller",
		"serviceaccount-token-controller",
	}
}

// The components, by the names of their binaries.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

// Cluster is a running control plane. Its methods may be called from several goroutines, except that starting and
// stopping the API server is for one at a time.
type Cluster struct {
	cfg       Config
	ownDir    bool
	binaries  map[string]string
	pki       pki
	ports     ports
	ns        *netNS
	clientCfg *rest.Config
	stopping  chan struct{} // closed by Stop

	watching sync.WaitGroup // goroutines that wait for a process to end
	logging  sync.Mutex     // held to write to cfg.Log

	mu        sync.Mutex
	processes map[string]*process // by component; guarded by mu
	stopped   bool                // guarded by mu
	known     *resources          // nil before it is asked for; guarded by mu
}

// ports are the TCP ports of one control plane, free when it started.
type ports struct{ etcd, etcdPeer, apiServer uint16 }

// Start builds the binaries if they are missing (minutes, once), starts a control plane
// and returns when the API server reports ready. The controllers are ready a second or so
// later. After an error nothing stays behind, except the logs in a Dir that the caller
// gave. If a component fails, the error has the end of its log.
//
// The processes die with the calling process, however that dies.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, binaries: map[string]string{}, processes: map[string]*process{}, stopping: make(chan struct{})}
	// Start opens the namespace first: it is that of the calling thread, and after
	// anything that blocks the goroutine may run on another thread.
	ns, err := openNetNS(cfg.NetNS)
	if err != nil {
		return nil, err
	}
	c.ns = ns
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (cfg *Config) setDefaults() error {
	if !cfg.ListenAddr.IsValid() {
		cfg.ListenAddr = loopback()
	}
	if cfg.ListenAddr.IsUnspecified() {
		return errors.New("listen address: must be one address, not all of them")
	}
	if len(cfg.ServiceCIDRs) == 0 {
		v4, v6 := netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/108")
		cfg.ServiceCIDRs = []netip.Prefix{v4, v6}
		if cfg.ListenAddr.Is6() {
			cfg.ServiceCIDRs = []netip.Prefix{v6, v4}
		}
	}
	if cfg.NodePortRange == "" {
		cfg.NodePortRange = "30000-32767"
	}
	if len(cfg.Controllers) == 0 && cfg.forKubelets() {
		cfg.Controllers = []string{"*"}
	}
	if len(cfg.Controllers) == 0 {
		cfg.Controllers = DefaultControllers()
	}
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	return nil
}

// forKubelets says whether nodes with kubelets are to join.
func (cfg *Config) forKubelets() bool { return len(cfg.PodCIDRs) > 0 }

func (c *Cluster) start(ctx context.Context) error {
	began := time.Now()
	names := map[string]string{etcd: etcd, apiServer: apiServer}
	if c.cfg.APIServer != "" {
		names[apiServer] += "-" + c.cfg.APIServer
	} else {
		names[controllerManager] = controllerManager
	}
	if c.cfg.forKubelets() {
		names[scheduler] = scheduler
	}
	for name, tool := range names {
		path, err := Tool(ctx, tool)
		if err != nil {
			return err
		}
		c.binaries[name] = path
	}
	if err := c.prepare(); err != nil {
		return err
	}
	if err := c.launch(etcd, c.etcdArgs()); err != nil {
		return err
	}
	if err := c.waitReady(ctx, etcd, c.etcdReady); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	if c.cfg.APIServer == "" {
		if err := c.launch(controllerManager, c.controllerManagerArgs()); err != nil {
			return err
		}
	}
	if c.cfg.forKubelets() {
		if err := c.launch(scheduler, c.schedulerArgs()); err != nil {
			return err
		}
	}
	c.logf("control plane ready after %v: %s", time.Since(began).Round(time.Millisecond), c.clientCfg.Host)
	return nil
}

// prepare writes the files of the processes, and chooses their ports.
func (c *Cluster) prepare() error {
	if c.cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "cluster-")
		if err != nil {
			return fmt.Errorf("make a directory for the control plane: %w", err)
		}
		c.cfg.Dir, c.ownDir = dir, true
	}
	// The processes get absolute paths, so that kubeconfigs work from any directory.
	dir, err := filepath.Abs(c.cfg.Dir)
	if err != nil {
		return fmt.Errorf("directory of the control plane: %w", err)
	}
	c.cfg.Dir = dir
	if c.ports, err = c.ns.freePorts(c.cfg.ListenAddr); err != nil {
		return err
	}
	names, addrs := c.servingNames()
	if c.pki, err = newPKI(filepath.Join(dir, "pki"), names, addrs); err != nil {
		return err
	}
	return c.writeClientConfigs()
}

// Stop kills every process of the control plane, closes its connections and files, and
// removes a temporary directory. It may be called more than once.
func (c *Cluster) Stop() {
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return
	}
	c.stopped = true
	close(c.stopping)
	running := c.processes
	c.mu.Unlock()

	// Nothing here needs to be saved, so every process gets SIGKILL. All are killed
	// before any is waited for: a component may end by itself when it loses another one.
	for _, p := range running {
		p.signal(syscall.SIGKILL)
	}
	c.watching.Wait()
	c.ns.close()
	if c.ownDir {
		if err := os.RemoveAll(c.cfg.Dir); err != nil {
			c.logf("remove the directory of the control plane: %v", err)
		}
	}
}

// StopAPIServer stops the API server with SIGTERM, as a node that shuts down does, and
// returns when it has gone. Clients see their watches end, and their connections are
// refused. It does nothing when the API server does not run.
func (c *Cluster) StopAPIServer() {
	if p := c.process(apiServer); p != nil {
		p.stop(15 * time.Second)
	}
}

// KillAPIServer ends the API server as a crash does, and returns when it has gone. It does nothing when the API server
// does not run.
func (c *Cluster) KillAPIServer() {
	if p := c.process(apiServer); p != nil {
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
}

// StartAPIServer starts the API server, at the same address and with the same data as before, and returns when it
// reports ready. It does nothing when the API server runs.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if p := c.process(apiServer); p == nil || p.dead() {
		if err := c.launch(apiServer, c.apiServerArgs()); err != nil {
			return err
		}
	}
	return c.waitReady(ctx, apiServer, c.apiServerReady)
}

// APIServerPID is the process of the API server, the last one if it has ended.
func (c *Cluster) APIServerPID() int { return c.process(apiServer).cmd.Process.Pid }

// RestartAPIServer stops the API server and starts it again.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	c.StopAPIServer()
	return c.StartAPIServer(ctx)
}

// AdminKubeconfig returns the path of a kubeconfig of a member of system:masters.
func (c *Cluster) AdminKubeconfig() string { return filepath.Join(c.cfg.Dir, "admin.kubeconfig") }

// Client returns a configuration for client-go with the rights of AdminKubeconfig and
// without client-side rate limits. It dials inside the namespace of the control plane, so
// it works from any other namespace. The caller owns the configuration.
func (c *Cluster) Client() *rest.Config { return rest.CopyConfig(c.clientCfg) }

// launch starts a component. It reports the component's death to Log, unless the
// component was asked to stop.
func (c *Cluster) launch(name string, args []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return fmt.Errorf("start %s: the control plane is stopped", name)
	}
	var p *process
	err := c.ns.do(func() (err error) {
		p, err = startProcess(name, c.binaries[name], args, filepath.Join(c.cfg.Dir, name+".log"))
		return err
	})
	if err != nil {
		return err
	}
	c.processes[name] = p
	c.watching.Go(func() {
		if err := p.wait(); err != nil {
			c.logf("%v", err)
			c.startAgain(name, args)
		}
	})
	return nil
}

// restartPause is the time between the end of a component and its next start.
const restartPause = time.Second

// startAgain starts a component that has ended by itself, where the control plane is as in production: there the
// kubelet of the control plane's node does so. Controllers end whenever they lose their lease.
func (c *Cluster) startAgain(name string, args []string) {
	if !c.cfg.forKubelets() || name != controllerManager && name != scheduler {
		return
	}
	select {
	case <-c.stopping:
	case <-time.After(restartPause):
		if err := c.launch(name, args); err != nil {
			c.logf("%v", err)
		}
	}
}

func (c *Cluster) process(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}

// waitReady calls ready until it returns no error, the component dies, or ctx ends.
func (c *Cluster) waitReady(ctx context.Context, name string, ready func(context.Context) error) error {
	p := c.process(name)
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("start %s: %w", name, p.exitError())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last answer: %w; end of its log:\n%s", name, ctx.Err(), err, p.logTail())
		case <-tick.C:
		}
	}
}

func (c *Cluster) logf(format string, args ...any) {
	c.logging.Lock()
	defer c.logging.Unlock()
	fmt.Fprintf(c.cfg.Log, "cluster: %s\n", strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}
