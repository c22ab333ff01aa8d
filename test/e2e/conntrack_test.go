package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestConntrackCommand: while no proxy runs, the kernel's table is as old as the last
// proxy. The command judges flows by the API server nevertheless. It finds the flows
// whose endpoint has been replaced, and those whose service has gone.
func TestConntrackCommand(t *testing.T) {
	n := newNode(t)
	client := n.addClient()
	one, two := n.addServer("web-1"), n.addServer("web-2")
	web, gone := n.create(service("web", "")), n.create(service("gone", ""))
	for i, a := range one.Addrs {
		n.publish(slice(fmt.Sprintf("web-%d", i), web, a))
		n.publish(slice(fmt.Sprintf("gone-%d", i), gone, a))
	}
	p := n.startProxy()
	p.until("the pod serves", func() error {
		return n.reaches(client, testnet.UDP, address(web, testnet.UDP, ip.V6), "web-1")
	})
	ask := func(port uint16, to netip.AddrPort) string {
		t.Helper()
		from := netip.AddrPortFrom(netip.IPv6Unspecified(), port)
		if to.Addr().Is4() {
			from = netip.AddrPortFrom(netip.IPv4Unspecified(), port)
		}
		a, err := client.AskFrom(n.ctx, testnet.UDP, from, to, patience)
		n.must(err)
		return a.ID
	}
	p.stop()
	// The entries must outlive the commands, on a slow machine too: 30 seconds is the default.
	n.must(n.Node.Sysctl("net.netfilter.nf_conntrack_udp_timeout", "600"), n.Node.FlushConntrack())
	addresses := []netip.AddrPort{address(web, testnet.UDP, ip.V4), address(web, testnet.UDP, ip.V6),
		address(gone, testnet.UDP, ip.V6)}
	for i, to := range addresses {
		if got := ask(4000+uint16(i), to); got != "web-1" {
			t.Fatalf("%s: %q answered", to, got)
		}
	}
	endpointSlices := n.plane.client.DiscoveryV1().EndpointSlices(n.namespace)
	for i, a := range two.Addrs {
		_, err := endpointSlices.Update(n.ctx, slice(fmt.Sprintf("web-%d", i), web, a), metav1.UpdateOptions{})
		n.must(err)
		n.must(endpointSlices.Delete(n.ctx, fmt.Sprintf("gone-%d", i), metav1.DeleteOptions{}))
	}
	n.must(n.plane.client.CoreV1().Services(n.namespace).Delete(n.ctx, gone.Name, metav1.DeleteOptions{}))

	source := []string{"--kubeconfig=" + n.plane.cluster.AdminKubeconfig(), "--hostname-override=" + n.name,
		"--cluster-cidr=" + n.clusterCIDR()}
	mine := func(list flowList) (stale []string) {
		for _, f := range list.Flows {
			if f.Stale {
				stale = append(stale, fmt.Sprintf("%s %s: %s", f.Service, f.Address, f.Reason))
			}
		}
		return stale
	}
	if got := mine(n.conntrack("list")); got != nil {
		t.Errorf("stale by the kernel's old table: %v", got)
	}
	want := []string{
		// Its address belongs to no Service now, and by the kernel's table did.
		fmt.Sprintf(" %s: service gone", addresses[2]),
		fmt.Sprintf("%s/web %s: endpoint gone", n.namespace, addresses[0]),
		fmt.Sprintf("%s/web %s: endpoint gone", n.namespace, addresses[1]),
	}
	if diff := cmp.Diff(want, mine(n.conntrack("list", source...))); diff != "" {
		t.Errorf("stale by the API server (-want +got):\n%s", diff)
	}
	cleaned := n.conntrack("clean", source...)
	if diff := cmp.Diff(want, mine(cleaned)); diff != "" || cleaned.Removed != len(want) {
		t.Errorf("removed %d flows (-want +got):\n%s", cleaned.Removed, diff)
	}
	if got := n.conntrack("list", source...); len(got.Flows) != 0 {
		t.Errorf("left after clean: %+v", got.Flows)
	}
	n.startProxy()
	for i, to := range addresses[:2] {
		if got := ask(4000+uint16(i), to); got != "web-2" {
			t.Errorf("%s: %q answered after clean, want web-2", to, got)
		}
	}
}

// flowList is what nftproxy conntrack list and clean print.
type flowList struct {
	Source  string
	Removed int
	Flows   []struct {
		Service, Address, Reason string
		Stale                    bool
	}
}

// conntrack runs one of the commands about flows on the node.
func (n *node) conntrack(command string, flags ...string) (list flowList) {
	n.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(shared.nftproxy(n.t), append([]string{"conntrack", command, "-o=json"}, flags...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := n.Node.Run(cmd); err != nil {
		n.t.Fatalf("%s: %v:\n%s", cmd, err, errs.String())
	}
	n.must(json.Unmarshal(out.Bytes(), &list))
	return list
}
