package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stoppedVariable has how long TestStopped stops the proxy at least, such as 5m.
const stoppedVariable = "NFTPROXY_STOPPED"

// TestStopped stops the proxy's process while the world changes: Services, endpoints, the node's
// addresses by the thousand, and other programs' tables. When it goes on, it gets everything right, and
// the last endpoint of each Service is in the kernel soon after. The log says how soon. A machine that sleeps
// does the same to the process, but for the clocks (daemon/process).
func TestStopped(t *testing.T) {
	n := newNode(t)
	const services, rounds, gone = 12, 60, 3
	slices := make([]*discoveryv1.EndpointSlice, services)
	for i := range slices {
		slices[i] = n.publish(slice(fmt.Sprintf("web-%d", i), n.create(service(fmt.Sprintf("web-%d", i), "")),
			stoppedEndpoint(i, 0)))
	}
	p := n.startProxy()
	n.verify()
	least := time.Duration(0)
	if text := os.Getenv(stoppedVariable); text != "" {
		var err error
		least, err = time.ParseDuration(text)
		n.must(err)
	}
	monitor := listenIn(t, n.Node)

	n.must(syscall.Kill(p.PID(), syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(p.PID(), syscall.SIGCONT) })
	stopped := time.Now()
	for round := 1; round <= rounds; round++ {
		for i := gone; i < services; i++ {
			slices[i] = n.moveTo(slices[i], stoppedEndpoint(i, round))
		}
		n.churnAddresses(100, round == rounds)
	}
	for i := range gone {
		n.must(n.plane.client.CoreV1().Services(n.namespace).Delete(n.ctx, fmt.Sprintf("web-%d", i), metav1.DeleteOptions{}))
	}
	added := n.create(service("added", ""))
	n.publish(slice("added", added, stoppedEndpoint(services, rounds)))
	time.Sleep(time.Until(stopped.Add(least)))
	if at, _ := monitor.Last(); !at.IsZero() {
		t.Fatal("the kernel's rules changed while the proxy was stopped")
	}

	var last []netip.Addr
	for i := gone; i <= services; i++ {
		last = append(last, stoppedEndpoint(i, rounds))
	}
	arrived := monitor.Expect(last...)
	woken := time.Now()
	n.must(syscall.Kill(p.PID(), syscall.SIGCONT))
	select {
	case at := <-arrived:
		t.Logf("stopped for %v, with %d changes; all in the kernel %v after it went on",
			woken.Sub(stopped).Round(time.Second),
			rounds*(services-gone)+gone+2, at.Sub(woken).Round(time.Millisecond))
	case <-p.Exited():
		t.Fatalf("the proxy ended: %v", p.Err())
	case <-time.After(patience):
		t.Fatalf("not all changes were in the kernel within %v", patience)
	}
	// Objects of several kinds come by streams of their own: the last of them may be under way.
	p.until("the tables are what the objects ask for", n.verified)
	p.stop()
}

// stoppedEndpoint is an endpoint of a Service in a round. No other has its address.
func stoppedEndpoint(service, round int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 126, byte(round), byte(service)})
}

// moveTo gives a slice another endpoint.
func (n *node) moveTo(s *discoveryv1.EndpointSlice, to netip.Addr) *discoveryv1.EndpointSlice {
	n.t.Helper()
	s.Endpoints[0].Addresses = []string{to.String()}
	s, err := n.plane.client.DiscoveryV1().EndpointSlices(n.namespace).Update(n.ctx, s, metav1.UpdateOptions{})
	n.must(err)
	return s
}

// churnAddresses adds and removes addresses of the node, so that the notices overflow the queue of a
// process that does not read them. The last address stays if stays says so.
func (n *node) churnAddresses(times int, stays bool) {
	n.t.Helper()
	for i := range times {
		address := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(i)}), 32)
		n.must(n.Node.AddAddr("lo", address))
		if i < times-1 || !stays {
			n.must(n.Node.DelAddr("lo", address))
		}
	}
}

// verified compares the kernel's tables with the objects, by the command.
func (n *node) verified() error {
	cmd := exec.Command(shared.nftproxy(n.t), "verify", "--hostname-override="+n.name, "--cluster-cidr="+n.clusterCIDR(),
		"--kubeconfig="+n.plane.cluster.AdminKubeconfig())
	var out []byte
	err := n.Node.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("verify: %w\n%s", err, out)
	}
	return nil
}

func (n *node) verify() {
	n.t.Helper()
	n.must(n.verified())
}
