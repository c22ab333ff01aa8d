package datapath

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// firstPackets gives the first packets to a Service to a program, before the rules of nftproxy translate them.
const firstPackets = `table ip first {
	chain prerouting {
		type filter hook prerouting priority -110;
		ip daddr 10.96.0.1 tcp dport 80 ct state new queue num 5;
	}
}`

// TestQueue logs what it saves clients if their first packet waits in a queue until the Service has an endpoint, in
// place of their kernel's repetition: the time from the endpoint on until they have their answer.
func TestQueue(t *testing.T) {
	for _, queued := range []bool{true, false} {
		for _, after := range []time.Duration{100, 900, 1100, 2900, 3100, 6900} { // ms; kernels repeat after 1, 3 and 7 s
			w := newHeld(t)
			var q *packetQueue
			if queued {
				if err := netfilter.NFTForTest(t).Load(w.Node, firstPackets); err != nil {
					t.Skipf("this kernel has no queues: %v", err)
				}
				q = newPacketQueue(w)
			}
			w.serve("hold", "Cluster", -1)
			first := w.ways()[0]
			var came time.Time
			start := time.Now()
			answers := w.askAll([]way{first}, func() {
				time.Sleep(time.Until(start.Add(after * time.Millisecond))) // the time until the endpoint is what is tried
				w.serve("hold", "Cluster", 100)
				came = time.Now()
				if queued {
					q.release()
				}
			})
			a := answers[0]
			if a.Outcome != testnet.Answered {
				t.Errorf("queued %t, endpoint after %d ms: %+v", queued, after, a)
				continue
			}
			t.Logf("queued %t, endpoint after %d ms: the answer %v later, attempt %d", queued, after,
				start.Add(a.Took).Sub(came).Round(time.Millisecond), a.Attempts)
		}
	}
}

// packetQueue decides about the packets of queue 5.
type packetQueue struct {
	*held
	conn *netlink.Conn
}

func newPacketQueue(w *held) *packetQueue {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: w.Node.Fd()})
	w.must(err)
	w.Cleanup(func() { w.must(conn.Close()) })
	q := &packetQueue{w, conn}
	q.send(queueConfig, netlink.Acknowledge, netlink.Attribute{Type: queueCommand, Data: []byte{1, 0, 0, unix.AF_INET}})
	q.send(queueConfig, netlink.Acknowledge, netlink.Attribute{Type: queueParams, Data: []byte{0, 0, 1, 0, 2}})
	return q
}

func (q *packetQueue) send(kind uint16, flags netlink.HeaderFlags, attr netlink.Attribute) {
	q.Helper()
	data, err := netlink.MarshalAttributes([]netlink.Attribute{attr})
	q.must(err)
	m := netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_QUEUE<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 5}, data...),
	}
	if flags&netlink.Acknowledge != 0 {
		_, err = q.conn.Execute(m)
	} else {
		_, err = q.conn.Send(m)
	}
	q.must(err)
}

// release has all packets that wait go on.
func (q *packetQueue) release() {
	q.Helper()
	const packetHeader, verdict, verdictHeader, accept = 1, 1, 2, 1 // NFQA_PACKET_HDR, NFQNL_MSG_VERDICT, NFQA_VERDICT_HDR
	q.must(q.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)))
	for {
		messages, err := q.conn.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		q.must(err)
		for _, m := range messages {
			attrs, err := netlink.UnmarshalAttributes(m.Data[4:])
			q.must(err)
			for _, a := range attrs {
				if a.Type == packetHeader {
					q.send(verdict, 0, netlink.Attribute{Type: verdictHeader,
						Data: append(binary.BigEndian.AppendUint32(nil, accept), a.Data[:4]...)})
				}
			}
		}
	}
}
