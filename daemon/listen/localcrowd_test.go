package listen

import (
	"fmt"
	"net"
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// TestLocalCrowd: clients that keep as many connections to a node port as it has, and read nothing, keep others from it
// and not from other ports. Their end makes room.
func TestLocalCrowd(t *testing.T) {
	w := newWorld(t)
	pods := w.serve("pod")
	w.builder.Set(nodePort("crowded", 30080, pods...))
	w.builder.Set(nodePort("other", 30081, pods...))
	w.apply(8)
	var first net.Conn
	for i := range maxOfPort {
		c := w.dial("tcp", 30080)
		// A megabyte is more than it passes on to a client that reads nothing: the echo fills all buffers.
		_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond))
		_, _ = c.Write(make([]byte, 1<<20))
		if i == 0 {
			first = c
		}
	}
	if got := w.ask(testnet.TCP, "127.0.0.1", 30080); got != "reset" {
		t.Errorf("one connection more: %s", got)
	}
	if c := w.ports.Counts(); c.Connections != maxOfPort || c.Refused == 0 {
		t.Errorf("counts %+v", c)
	}
	// The client may hear of its reset before the log does.
	for limit := time.Now().Add(patience); !w.log.has("too many are open"); {
		if time.Now().After(limit) {
			t.Fatal("the log does not say that too many are open")
		}
		time.Sleep(time.Millisecond)
	}
	for _, other := range []struct {
		protocol, address string
		port              uint16
	}{{testnet.TCP, "127.0.0.1", 30081}, {testnet.TCP, "::1", 30080}, {testnet.UDP, "127.0.0.1", 30080}} {
		if got := w.ask(other.protocol, other.address, other.port); got != "pod" {
			t.Errorf("%+v: %s", other, got)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for w.ask(testnet.TCP, "127.0.0.1", 30080) != "pod" { // until LocalPorts have seen the end
		time.Sleep(10 * time.Millisecond)
	}
}

// TestResetByClient: a client that resets its connection leaves none behind, though its endpoint neither sends nor
// ends.
func TestResetByClient(t *testing.T) {
	w := newWorld(t)
	w.builder.Set(nodePort("web", 30080, w.serve("pod")...))
	w.apply(4)
	c := w.dial("tcp", 30080)
	if got := line(c); got != "pod" {
		t.Fatalf("answer from %q", got)
	}
	if n := w.ports.Counts().Connections; n != 1 {
		t.Fatalf("%d connections, want 1", n)
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
	for limit := time.Now().Add(patience); w.ports.Counts().Connections > 0; {
		if time.Now().After(limit) {
			t.Fatal("the connection is still there")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSessions: sessions of UDP are bounded for a port and for all. Each further client gets its answer, and so do
// those whose session went for it.
func TestSessions(t *testing.T) {
	w := newWorld(t)
	pods := w.serve("pod")
	const ports = maxSessions/maxSessionsOfPort + 2
	for i := range uint16(ports) {
		w.builder.Set(nodePort(fmt.Sprint("web-", i), 30080+i, pods...))
	}
	w.apply(4 * ports)
	exchange := func(c net.Conn) {
		t.Helper()
		if _, err := c.Write([]byte("question")); err != nil || line(c) != "pod" {
			t.Fatalf("no answer: %v", err)
		}
	}
	first := w.dial("udp", 30080)
	exchange(first)
	for i := range uint16(ports) {
		for range maxSessionsOfPort + 5 {
			c, err := w.Node.Dial(t.Context(), "udp", fmt.Sprintf("127.0.0.1:%d", 30080+i))
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			exchange(c)
			_ = c.Close()
		}
		if c := w.ports.Counts(); c.Sessions > maxSessions || i == 0 && c.Sessions != maxSessionsOfPort {
			t.Errorf("after port %d: %+v", i, c)
		}
	}
	exchange(first)
	if c := w.ports.Counts(); c.Sessions != maxSessions || c.Closed == 0 || !w.log.has("closed a session of a node port") {
		t.Errorf("in the end: %+v", c)
	}
}
