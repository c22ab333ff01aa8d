package ipvs

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/test/lib/child"
	"nftproxy/test/lib/testnet"
)

// TestWithoutIPTables: where the kernel lacks the modules of iptables and ipset, as on RHEL 10, the real kube-proxy
// does not serve in iptables mode, and says why; nftproxy serves on the same node, and asks for none of these modules
// (make test-no-iptables fails if it does).
func TestWithoutIPTables(t *testing.T) {
	w := newWorld(t)
	if w.hasIPTables() {
		t.Skip("this kernel has the modules of iptables")
	}
	w.nftproxy = w.startNftproxy() // its rules have the kernel load connection tracking, whose sysctls kube-proxy needs
	w.serves("nftproxy", w.ways())
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	must(t, w.nftproxy.Stop(ctx))
	w.run("nftproxy", "cleanup")

	w.startKubeProxy("iptables")
	refused, _, err := w.kubeProxy.Await(ctx, 0, func(l child.Line) bool { return l.Has("missing kernel module") })
	if err != nil {
		t.Fatalf("kube-proxy in iptables mode says nothing of missing modules: %v:\n%s", err, w.kubeProxy.Tail(1000))
	}
	t.Logf("kube-proxy in iptables mode: %s", refused.Text)
	for _, to := range w.ways() {
		if to.protocol != testnet.TCP || !slices.Contains(w.web.addrs(), to.to.Addr()) {
			continue
		}
		if a, err := w.ask(to, time.Second); err == nil && a.Outcome == testnet.Answered {
			t.Errorf("kube-proxy without iptables serves %s", to)
		}
	}
}

// hasIPTables says whether the kernel takes a rule of iptables with a match, through either of its interfaces.
func (w *world) hasIPTables() bool {
	_, err := w.output("iptables", "-t", "nat", "-N", "TRIED")
	must(w.T, err)
	out, err := w.output("iptables", "-t", "nat", "-A", "TRIED", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "RETURN")
	if err != nil && !strings.Contains(out, "missing kernel module") {
		w.Fatalf("iptables: %v: %s", err, out)
	}
	return err == nil
}
