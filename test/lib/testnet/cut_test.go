package testnet_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// TestCut: an open connection from another host has no answers while it is cut, and all of them afterwards; one from
// the same host goes on.
func TestCut(t *testing.T) {
	server, client := testnet.NamespaceForTest(t, "server"), testnet.NamespaceForTest(t, "client")
	here, there := testnet.End{NS: server, Link: "eth0"}, testnet.End{NS: client, Link: "eth0"}
	addr := netip.MustParsePrefix("192.0.2.1/24")
	err := errors.Join(testnet.Pair(here, there), server.AddAddr("eth0", addr),
		client.AddAddr("eth0", netip.MustParsePrefix("192.0.2.2/24")))
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(addr.Addr(), 6443)
	if _, err := server.Serve(testnet.TCP, to, "api"); err != nil {
		t.Fatal(err)
	}
	far, near := newEcho(t, client, to), newEcho(t, server, to)
	far.say("one")
	far.hear("one")
	repair, err := server.Cut(to)
	if err != nil {
		t.Fatal(err)
	}
	far.say("two")
	near.say("near")
	near.hear("near")
	if err := far.conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if line, err := far.lines.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("while cut off: %q, %v", line, err)
	}
	if err := repair(); err != nil {
		t.Fatal(err)
	}
	far.hear("two")
}

// echo is a connection to a server that repeats each line.
type echo struct {
	*testing.T
	conn  net.Conn
	lines *bufio.Reader
}

func newEcho(t *testing.T, from *testnet.Namespace, to netip.AddrPort) *echo {
	t.Helper()
	conn, err := from.Dial(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	e := &echo{t, conn, bufio.NewReader(conn)}
	if _, err := e.lines.ReadString('\n'); err != nil { // the server's greeting
		t.Fatal(err)
	}
	return e
}

func (e *echo) say(line string) {
	e.Helper()
	if _, err := fmt.Fprintln(e.conn, line); err != nil {
		e.Fatal(err)
	}
}

func (e *echo) hear(want string) {
	e.Helper()
	if err := e.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		e.Fatal(err)
	}
	line, err := e.lines.ReadString('\n')
	if err != nil || line != want+"\n" {
		e.Fatalf("got %q, %v, want %q", line, err, want)
	}
}
