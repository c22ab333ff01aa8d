package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// TestSilentPeer: a connection whose peer falls silent without a word ends, at rest and with a request under way, so that watches
// go on by another one. client-go's pings would take 45 s.
func TestSilentPeer(t *testing.T) {
	server, client := testnet.NamespaceForTest(t, "server"), testnet.NamespaceForTest(t, "client")
	here, there := testnet.End{NS: server, Link: "eth0"}, testnet.End{NS: client, Link: "eth0"}
	addr := netip.MustParsePrefix("192.0.2.1/24")
	if err := errors.Join(testnet.Pair(here, there), server.AddAddr("eth0", addr), client.AddAddr("eth0", netip.MustParsePrefix("192.0.2.2/24"))); err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(addr.Addr(), 6443)
	if _, err := server.Serve(testnet.TCP, to, "api"); err != nil {
		t.Fatal(err)
	}
	connect := func() (conn net.Conn) {
		err := client.Do(func() (err error) { // a literal address: no other goroutine connects
			conn, err = newConnector().connect(context.Background(), "tcp", to.String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Read(make([]byte, 100)); err != nil { // the server's greeting
			t.Fatal(err)
		}
		return conn
	}
	resting, asking := connect(), connect()
	if _, err := server.Cut(to); err != nil {
		t.Fatal(err)
	}
	cut := time.Now()
	if _, err := asking.Write([]byte("list\n")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for _, conn := range []net.Conn{resting, asking} {
		go func() {
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
	}
	for range 2 {
		select {
		case err := <-ended:
			t.Logf("after %s: %v", time.Since(cut).Round(time.Millisecond), err)
			if !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("ended with %v", err)
			}
		case <-time.After(25 * time.Second):
			t.Fatal("not noticed after 25 s")
		}
	}
}
