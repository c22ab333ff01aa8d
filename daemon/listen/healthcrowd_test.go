package listen

import (
	"fmt"
	"io"
	"net"
	"testing"

	"nftproxy/model/service"
)

// TestHealthCrowd: clients that keep as many connections to a port as they may do not keep others from it: a load
// balancer that asks now and then is answered each time. So is one of these clients at this port and at others.
func TestHealthCrowd(t *testing.T) {
	n := startNode(t, "0.0.0.0/0", "2001:db8::/32")
	n.sync("2 open, 0 failed", service.Node{}, checked("web", 30100, "10.0.0.1:80"),
		checked("other", 30200, "10.0.0.1:80"))
	answers := func(from, to string) bool {
		t.Helper()
		c, err := n.ns.DialFrom(t.Context(), "tcp", from+":0", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return isAnswered(c)
	}
	for i := range maxHealthConnections {
		if !answers(fmt.Sprintf("127.0.0.%d", 1+i%(maxHealthConnections/maxOfClient)), "127.0.0.1:30100") {
			t.Fatalf("connection %d is closed", i)
		}
	}
	for i := range 2 * maxOfClient {
		if !answers("127.0.0.9", "127.0.0.1:30100") {
			t.Fatalf("probe %d is not answered", i)
		}
	}
	if !answers("127.0.0.1", "127.0.0.1:30100") {
		t.Error("one more is not answered")
	}
	if !answers("127.0.0.1", "127.0.0.1:30200") {
		t.Error("another port is not")
	}
}

// isAnswered sends a request and keeps the connection.
func isAnswered(c net.Conn) bool {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return false
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err == nil
}
