package main

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// TestGivenUp: an endpoint vanishes. Its client gives the connection up and connects again from the same port: it
// reaches the endpoint that is left within about a minute.
func TestGivenUp(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	w := newEjectWorld(t, 2)
	only := func(node string) string {
		return manifest(t, ejectManifest("", map[string]netip.Addr{node: w.endpoints[node]}))
	}
	path := only("node-2")
	r := start(t, w.Node, "--nftproxy-manifests", path, "--cluster-cidr", "10.244.0.0/16", "--nftproxy-eject=off")
	r.awaitSync()
	from := netip.AddrPortFrom(w.client.Addrs.V4(), 833).String()
	client, err := w.client.NS.DialFrom(t.Context(), "tcp", from, "10.96.0.10:80")
	testnet.Require(t, err)
	raw, err := client.(syscall.Conn).SyscallConn()
	testnet.Require(t, err)
	testnet.Require(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 2000)
	}))
	testnet.Require(t, err)
	_, err = client.Read(make([]byte, 1))
	testnet.Require(t, err)

	_, err = w.pods["node-2"].NS.Cut(netip.AddrPortFrom(w.endpoints["node-2"], 8080))
	testnet.Require(t, err)
	testnet.Require(t, os.Rename(only("node-1"), path))
	r.awaitSync()
	departed := time.Now()
	_, err = client.Write([]byte("anybody there?\n"))
	testnet.Require(t, err)
	if _, err = io.Copy(io.Discard, client); !errors.Is(err, unix.ETIMEDOUT) {
		t.Fatalf("the connection ended with %v", err)
	}
	testnet.Require(t, client.Close())
	for err = errors.New("not yet"); err != nil; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if client, err = w.client.NS.DialFrom(ctx, "tcp", from, "10.96.0.10:80"); err == nil {
			_ = client.Close()
		}
		if cancel(); time.Since(departed) > awaitLimit {
			t.Fatalf("not reached: %v", err)
		}
	}
	t.Logf("reached %v after the endpoint has left", time.Since(departed))
	r.end()
}
