package datapath

import (
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/service"
)

// offload is IPS_OFFLOAD, the status of an entry whose flow takes the fast path.
const offload conntrack.Status = 1 << 14

// client is a pod that sends datagrams from one port to the Service.
type client struct {
	*world
	conn  net.Conn
	table *conntrack.Table
}

func newClient(w *world) client {
	w.Helper()
	conn, err := w.client.NS.Dial(w.Context(), "udp", w.clusterIP.String())
	w.must(err)
	w.Cleanup(func() { w.must(conn.Close()) })
	w.must(conn.SetDeadline(time.Now().Add(limit)))
	table, err := conntrack.Open(conntrack.Config{NetNS: w.Node.Fd()})
	w.must(err)
	w.Cleanup(func() { w.must(table.Close()) })
	return client{w, conn, table}
}

// ask sends datagrams one after the other, and wants an endpoint to answer each.
func (c client) ask(datagrams int, want uint16) {
	c.Helper()
	b := make([]byte, 64)
	for i := range datagrams {
		_, err := c.conn.Write([]byte("?"))
		c.must(err)
		n, err := c.conn.Read(b)
		c.must(err)
		if got := string(b[:n]); got != c.endpoint(want).String() {
			c.Fatalf("%s answers datagram %d, want %v", got, i, c.endpoint(want))
		}
	}
}

// flows are the entries of connections to the Service.
func (c client) flows(p service.Protocol) (flows []conntrack.Flow) {
	c.Helper()
	c.must(c.table.Flows(c.Context(), conntrack.Filter{Protocol: p, Dst: c.clusterIP.Addr()},
		func(f conntrack.Flow) error {
			flows = append(flows, f)
			return nil
		}))
	return flows
}

// entry is the client's one entry, which has to be on the fast path.
func (c client) entry() conntrack.Flow {
	c.Helper()
	flows := c.flows(service.UDP)
	if len(flows) != 1 || flows[0].Status&offload == 0 {
		c.Fatalf("flows %+v, want one on the fast path", flows)
	}
	return flows[0]
}

// accounted is the number of packets of the client's entry by the kernel's accounting.
func (c client) accounted() int {
	c.Helper()
	var text []byte
	c.must(c.Node.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
		return err
	}))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "dst="+c.clusterIP.Addr().String()) {
			return c.number(line, "packets=")
		}
	}
	c.Fatalf("no entry of the Service in %s", text)
	return 0
}

// TestRemovedEntry: a flow on the fast path stays with its endpoint after this left the Service. Once
// the flow's entry is removed, its next datagram meets the rules, as without the fast path. So the
// clean-up of conntrack entries would need nothing more.
func TestRemovedEntry(t *testing.T) {
	w := newWorld(t)
	w.needFlowtables()
	w.takeFastPath()
	c := newClient(w)
	c.ask(10, port)
	old := c.entry()
	w.lead(otherPort)
	c.ask(10, port)
	if removed, err := c.table.Delete(t.Context(), []conntrack.Flow{old}); err != nil || removed != 1 {
		t.Fatalf("the kernel removed %d entries of one on the fast path: %v", removed, err)
	}
	c.ask(10, otherPort)
	if now := c.entry(); now.ID == old.ID || now.Reply.Src != w.endpoint(otherPort) {
		t.Errorf("entry %+v after the removal, want one to %v", now, w.endpoint(otherPort))
	}
}

// TestCutConnection: an established TCP connection on the fast path of another program's flowtable ends as any other
// when its entry is removed, as draining and the removal of dead endpoints do: its next packet meets the rules, and the
// endpoint that it now reaches, which does not know it, resets it.
func TestCutConnection(t *testing.T) {
	w := newWorld(t)
	w.needFlowtables()
	w.takeFastPath()
	c := newClient(w)
	conn, err := w.client.NS.Dial(t.Context(), "tcp", w.clusterIP.String())
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(limit)))
	var flows []conntrack.Flow
	for len(flows) != 1 || flows[0].Status&offload == 0 {
		_, err := conn.Write([]byte("data"))
		w.must(err)
		if flows = c.flows(service.TCP); len(flows) != 1 {
			t.Fatalf("%d entries of one connection", len(flows))
		}
	}
	w.lead(otherPort)
	_, err = conn.Write([]byte("still to the old endpoint"))
	w.must(err)
	if removed, err := c.table.Delete(t.Context(), flows); err != nil || removed != 1 {
		t.Fatalf("the kernel removed %d entries of one on the fast path: %v", removed, err)
	}
	for err == nil {
		_, err = conn.Write([]byte("to the new one"))
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the connection ends with %v, want a reset", err)
	}
}

// TestHiddenTraffic: what forwards past the hooks counts nowhere, and its entries show no time.
func TestHiddenTraffic(t *testing.T) {
	const datagrams = 100
	w := newWorld(t)
	w.needFlowtables()
	w.must(w.Node.Sysctl("net.netfilter.nf_conntrack_acct", "1"))
	w.takeFastPath()
	w.must(w.nft.Load(w.Node, seen))
	c := newClient(w)
	c.ask(10, port)
	if left := c.entry().Timeout; left != 0 {
		t.Errorf("the entry says that %v are left to it, want nothing", left)
	}
	forwarded, accounted := w.forwarded(), c.accounted()
	c.ask(datagrams, port)
	if got := w.forwarded() - forwarded; got > datagrams/10 {
		t.Errorf("the forward hook counted %d packets, want few of %d", got, 2*datagrams)
	}
	if got := c.accounted() - accounted; got > datagrams/10 {
		t.Errorf("the entry's accounting counted %d packets, want few of %d", got, datagrams)
	}
}
