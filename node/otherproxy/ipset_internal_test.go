package otherproxy

import (
	"bytes"
	"log"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// TestNodePortsOfSets: the node ports are those in kube-proxy's ipsets, of whatever type. The library writes nothing to
// the log.
func TestNodePortsOfSets(t *testing.T) {
	var said bytes.Buffer
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	ns := testnet.NamespaceForTest(t, "sets")
	netfilter.NeedIPTables(t)
	command, err := aptget.Command("ipset", "ipset") // as kube-proxy runs it
	if err != nil {
		t.Fatal(err)
	}
	restore := exec.Command(command, "restore")
	restore.Stdin = strings.NewReader(`
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
create KUBE-6-NODE-PORT-TCP bitmap:port range 0-65535 comment counters
create KUBE-NODE-PORT-UDP bitmap:port range 0-65535
create KUBE-NODE-PORT-SCTP-HASH hash:ip,port family inet hashsize 1024 maxelem 65536
create OTHER bitmap:port range 0-65535
add KUBE-NODE-PORT-TCP 30001
add KUBE-NODE-PORT-TCP 65535
add KUBE-6-NODE-PORT-TCP 30002 comment "a node port"
add KUBE-NODE-PORT-SCTP-HASH 192.0.2.1,sctp:30003
add OTHER 30004
`)
	if err := ns.Run(restore); err != nil {
		t.Skipf("this kernel lacks types of ipsets: %v", err)
	}
	var sets []string
	var ports map[nodePort]bool
	if err := ns.Do(func() (err error) {
		if sets, err = setNames(); err == nil {
			ports, err = (&ipvsLeft{sets: sets}).nodePorts()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	const tcp, sctp = unix.IPPROTO_TCP, unix.IPPROTO_SCTP
	want := []string{"KUBE-6-NODE-PORT-TCP", "KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-UDP"}
	if diff := cmp.Diff(want, sets); diff != "" {
		t.Errorf("sets (-want +got):\n%s", diff)
	}
	wantPorts := map[nodePort]bool{{ip.V4, tcp, 30001}: true, {ip.V4, tcp, 65535}: true, {ip.V6, tcp, 30002}: true,
		{ip.V4, sctp, 30003}: true}
	if diff := cmp.Diff(wantPorts, ports, cmp.AllowUnexported(nodePort{})); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	if said.Len() > 0 {
		t.Errorf("in the log: %s", said.String())
	}
}
