package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/testnet"
)

// TestGivenUp: two endpoints leave a Service. One vanishes, and its client gives the connection up and connects again
// from the same port: it reaches an endpoint that is left within the minute. The other one lives and only stops to read
// meanwhile: its connection stays, whatever the sender's pauses are.
func TestGivenUp(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	w := newEjectWorld(t, 2)
	stalls, err := w.AddRemotePod("stalls")
	testnet.Require(t, err)
	stalled := stall(t, stalls)
	only := func(pod *testnet.Pod) string {
		return manifest(t, ejectManifest("", map[string]netip.Addr{"node-2": pod.Addrs.V4()}))
	}
	path := only(stalls)
	r := start(t, w.Node, "--nftproxy-manifests", path, "--cluster-cidr", "10.244.0.0/16", "--nftproxy-eject=off")
	r.awaitSync()
	become := func(pod *testnet.Pod) {
		testnet.Require(t, os.Rename(only(pod), path))
		r.await("the sync", func(l logged) bool { return l.Msg == "synced" })
	}
	living, err := w.client.NS.Dial(t.Context(), "tcp", "10.96.0.10:80")
	testnet.Require(t, err)
	defer living.Close()
	server := <-stalled
	sent := fill(t, living)

	become(w.pods["node-2"])
	from := netip.AddrPortFrom(w.client.Addrs.V4(), 833).String()
	client, err := w.client.NS.DialFrom(t.Context(), "tcp", from, "10.96.0.10:80")
	testnet.Require(t, err)
	testnet.Require(t, option(client, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 2000))
	_, err = client.Read(make([]byte, 1))
	testnet.Require(t, err)

	_, err = w.pods["node-2"].NS.Cut(netip.AddrPortFrom(w.endpoints["node-2"], 8080))
	testnet.Require(t, err)
	become(w.pods["node-1"])
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

	testnet.Require(t, errors.Join(server.SetDeadline(time.Now().Add(awaitLimit)), living.SetDeadline(time.Time{})))
	got := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(io.Discard, server)
		got <- n
	}()
	_, err = living.Write([]byte("the end"))
	testnet.Require(t, err)
	testnet.Require(t, living.Close())
	if n := <-got; n != sent+int64(len("the end")) {
		t.Errorf("the endpoint that had stopped to read got %d bytes of %d", n, sent+int64(len("the end")))
	}
	r.end()
}

// stall accepts connections in a pod, and reads nothing.
func stall(t *testing.T, pod *testnet.Pod) chan net.Conn {
	l, err := pod.NS.Listen(t.Context(), "tcp", "0.0.0.0:8080")
	testnet.Require(t, err)
	testnet.Require(t, option(l, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096))
	t.Cleanup(func() { _ = l.Close() })
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	return accepted
}

// fill sends until nothing more goes, and returns how much that was.
func fill(t *testing.T, c net.Conn) (sent int64) {
	testnet.Require(t, c.SetDeadline(time.Now().Add(2*time.Second)))
	for {
		n, err := c.Write(bytes.Repeat([]byte("x"), 1000))
		if sent += int64(n); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			return sent
		}
	}
}

func option(of any, level, name, value int) error {
	raw, err := of.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, name, value) })
	return errors.Join(err, failed)
}
