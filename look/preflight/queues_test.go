package preflight_test

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/look/preflight"
	"nftproxy/nfnetlink"
	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
)

// TestQueues: a program that waits for packets is named while no rule hands it any, whichever iptables has the rule.
// One that has ended is not.
func TestQueues(t *testing.T) {
	w := newWorld(t)
	w.want(w.check(), preflight.Green, "queues")
	var socket *nfnetlink.Socket
	if err := w.ns.Do(func() (err error) {
		socket, err = nfnetlink.Dial(nfnetlink.Config{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := waitInQueue(socket); err != nil {
		t.Skipf("this kernel has no queues: %v", err)
	}
	w.want(w.check(), preflight.Yellow, "queues", "in queue 0", "enforces nothing", "CONFIG_NFT_QUEUE")
	netfilter.NeedIPTables(t)
	for _, program := range []string{"iptables-legacy", "ip6tables-nft"} {
		path, err := aptget.Command(program, "iptables")
		if err != nil {
			t.Fatal(err)
		}
		rule := func(change string) {
			args := strings.Fields("-w -t mangle " + change + " POSTROUTING -p tcp -j NFQUEUE --queue-num 0")
			if err := w.ns.Run(exec.Command(path, args...)); err != nil {
				t.Fatalf("%s %v: %v", program, args, err)
			}
		}
		rule("-A")
		w.want(w.check(), preflight.Green, "queues", "rules hand it packets")
		rule("-D")
		w.want(w.check(), preflight.Yellow, "queues")
	}
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	w.want(w.check(), preflight.Green, "queues")
}

// waitInQueue does what a policy engine does: it asks for the packets of queue 0
// (uapi/linux/netfilter/nfnetlink_queue.h).
func waitInQueue(socket *nfnetlink.Socket) error {
	const (
		messageConfig    = 2 // NFQNL_MSG_CONFIG
		attributeCommand = 1 // NFQA_CFG_CMD
		commandBind      = 1 // NFQNL_CFG_CMD_BIND
	)
	r := nfnetlink.Requester{Socket: socket, Subsystem: unix.NFNL_SUBSYS_QUEUE}
	command := new(nfnetlink.Encoder).Bytes(attributeCommand, []byte{commandBind, 0, 0, unix.AF_UNSPEC})
	return r.Receive(messageConfig, unix.NLM_F_ACK, unix.AF_UNSPEC, command.B, func(nfnetlink.Message) error {
		return nil
	})
}
