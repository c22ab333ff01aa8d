package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"
)

func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

func localURL(port uint16) string {
	return "http://" + netip.AddrPortFrom(loopback(), port).String()
}

// apiAddr is where the API server listens.
func (c *Cluster) apiAddr() netip.AddrPort {
	return netip.AddrPortFrom(c.cfg.ListenAddr, c.ports.apiServer)
}

func (c *Cluster) etcdArgs() []string {
	client, peer := localURL(c.ports.etcd), localURL(c.ports.etcdPeer)
	return []string{
		"--name=test",
		"--data-dir=" + filepath.Join(c.cfg.Dir, "etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=test=" + peer,
		"--log-level=warn",
		// The data need not outlive the machine.
		"--unsafe-no-fsync",
		// A single member elects itself after one election timeout. In milliseconds.
		"--heartbeat-interval=10",
		"--election-timeout=100",
	}
}

func (c *Cluster) etcdReady(ctx context.Context) error {
	transport := &http.Transport{DialContext: c.ns.dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, localURL(c.ports.etcd)+"/health", nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd's health: %s", answer.Status)
	}
	return nil
}

func (c *Cluster) apiServerArgs() []string {
	args := []string{
		"--etcd-servers=" + localURL(c.ports.etcd),
		"--bind-address=" + c.cfg.ListenAddr.String(),
		"--secure-port=" + strconv.Itoa(int(c.ports.apiServer)),
		"--tls-cert-file=" + c.pki.servingCert,
		"--tls-private-key-file=" + c.pki.servingKey,
		"--client-ca-file=" + c.pki.caCert,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.pki.serviceAccountPublicKey,
		"--service-account-signing-key-file=" + c.pki.serviceAccountKey,
		"--service-cluster-ip-range=" + joinPrefixes(c.cfg.ServiceCIDRs),
		"--service-node-port-range=" + c.cfg.NodePortRange,
		// Tests create objects by the ten thousand, and do not look at fairness between
		// clients.
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=4000",
		"--max-mutating-requests-inflight=2000",
		"--profiling=false",
		// Watches end when the server is told to stop. By default the server waits a
		// minute for their clients to go away.
		"--shutdown-watch-termination-grace-period=500ms",
	}
	if c.cfg.forKubelets() {
		args = append(args,
			"--kubelet-client-certificate="+c.pki.kubeletClientCert,
			"--kubelet-client-key="+c.pki.kubeletClientKey,
			"--kubelet-preferred-address-types=InternalIP",
			// No service proxy runs beside the API server: it reaches Services by their endpoints.
			"--enable-aggregator-routing=true",
		)
	}
	if c.cfg.ListenAddr.IsLoopback() {
		// The API server refuses a loopback address as an endpoint. No client reads this
		// one (RFC 5737, RFC 3849).
		documentation := "192.0.2.1"
		if c.cfg.ListenAddr.Is6() {
			documentation = "2001:db8::1"
		}
		return append(args, "--endpoint-reconciler-type=none", "--advertise-address="+documentation)
	}
	return append(args, "--advertise-address="+c.cfg.ListenAddr.String())
}

func (c *Cluster) apiServerReady(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.clientCfg)
	if err != nil {
		return err
	}
	return client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

func (c *Cluster) controllerManagerArgs() []string {
	args := []string{
		"--kubeconfig=" + filepath.Join(c.cfg.Dir, controllerManager+".kubeconfig"),
		"--controllers=" + strings.Join(c.cfg.Controllers, ","),
		"--use-service-account-credentials=true", // each controller with the RBAC role that it has in production
		"--service-account-private-key-file=" + c.pki.serviceAccountKey,
		"--root-ca-file=" + c.pki.caCert,
		"--service-cluster-ip-range=" + joinPrefixes(c.cfg.ServiceCIDRs),
		c.leaderElection(),
		"--secure-port=0",
		"--kube-api-qps=10000",
		"--kube-api-burst=10000",
		"--profiling=false",
	}
	if c.cfg.forKubelets() {
		args = append(args, "--allocate-node-cidrs=true", "--cluster-cidr="+joinPrefixes(c.cfg.PodCIDRs))
	}
	return append(args, c.cfg.ControllerFlags...)
}

// leaderElection is a flag of the controllers. In production they elect a leader even where there is one of each only,
// so that one which cannot reach the API server for ten seconds ends, and another one starts with nothing in memory.
func (c *Cluster) leaderElection() string {
	return "--leader-elect=" + strconv.FormatBool(c.cfg.forKubelets())
}

func (c *Cluster) schedulerArgs() []string {
	return []string{
		"--kubeconfig=" + filepath.Join(c.cfg.Dir, scheduler+".kubeconfig"),
		c.leaderElection(),
		"--secure-port=0",
		"--profiling=false",
	}
}

// servingNames are the names and addresses by which clients know the API server.
func (c *Cluster) servingNames() ([]string, []net.IP) {
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local"}
	addrs := []net.IP{c.cfg.ListenAddr.AsSlice()}
	for _, cidr := range c.cfg.ServiceCIDRs {
		// The API server gives the first address of the first range to the service default/kubernetes.
		addrs = append(addrs, cidr.Masked().Addr().Next().AsSlice())
	}
	return names, addrs
}

func joinPrefixes(prefixes []netip.Prefix) string {
	var s []string
	for _, p := range prefixes {
		s = append(s, p.String())
	}
	return strings.Join(s, ",")
}
