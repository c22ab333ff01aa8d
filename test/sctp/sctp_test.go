// Package sctp promises that the kernel's own SCTP reaches Services: associations with messages both
// ways, in place of the single packets of package testnet, which kernels without SCTP can send too.
//
// The tests are skipped where the kernel has no SCTP.
package sctp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/testnet"
)

// limit is for each call of a socket, on a busy computer.
const limit = 60

// socket makes an SCTP socket in a namespace.
func socket(t *testing.T, ns *testnet.Namespace, like netip.Addr) int {
	t.Helper()
	domain := unix.AF_INET
	if like.Is6() {
		domain = unix.AF_INET6
	}
	fd := -1
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		return os.NewSyscallError("socket", err)
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skipf("this kernel has no SCTP: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &unix.Timeval{Sec: limit}); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// serve answers each message of each association with the server's name before it.
func serve(t *testing.T, pod *testnet.Pod, name string, at netip.AddrPort) {
	t.Helper()
	listener := socket(t, pod.NS, at.Addr())
	if err := errors.Join(unix.Bind(listener, sockaddr(at)), unix.Listen(listener, 16)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			peer, _, err := unix.Accept(listener)
			if err != nil {
				return // the end of the test, or of limit
			}
			buf := make([]byte, 256)
			for {
				n, err := unix.Read(peer, buf)
				if err != nil || n == 0 {
					break
				}
				if _, err := unix.Write(peer, []byte(name+" "+string(buf[:n]))); err != nil {
					break
				}
			}
			_ = unix.Close(peer)
		}
	}()
	t.Cleanup(func() {
		_ = unix.Shutdown(listener, unix.SHUT_RDWR)
		<-ended
	})
}

// talk opens an association, exchanges messages, and returns the name of the server.
func talk(t *testing.T, from *testnet.Namespace, to netip.AddrPort) (server string, err error) {
	t.Helper()
	fd := socket(t, from, to.Addr())
	defer unix.Shutdown(fd, unix.SHUT_RDWR)
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return "", os.NewSyscallError("connect", err)
	}
	buf := make([]byte, 256)
	for i := range 5 {
		message := fmt.Sprintf("message %d", i)
		if _, err := unix.Write(fd, []byte(message)); err != nil {
			return "", os.NewSyscallError("write", err)
		}
		n, err := unix.Read(fd, buf)
		if err != nil {
			return "", os.NewSyscallError("read", err)
		}
		name, echo, _ := strings.Cut(string(buf[:n]), " ")
		if echo != message || server != "" && name != server {
			return "", fmt.Errorf("%q after %q, from %s", buf[:n], message, server)
		}
		server = name
	}
	return server, nil
}

// TestAssociations: associations through the cluster IP, from a pod and from the node, reach
// the Service's endpoints, each of them, and one to a Service without endpoints comes to nothing.
func TestAssociations(t *testing.T) {
	world := testnet.NewForTest(t, testnet.Config{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pods := map[string]*testnet.Pod{}
	for _, name := range []string{"one", "two", "client"} {
		pod, err := world.AddPod(name)
		must(err)
		pods[name] = pod
	}
	for family, pick := range map[string]func(testnet.Addrs) netip.Addr{"IPv4": testnet.Addrs.V4, "IPv6": testnet.Addrs.V6} {
		t.Run(family, func(t *testing.T) {
			clusterIP, empty := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")
			if family == "IPv6" {
				clusterIP, empty = netip.MustParseAddr("fd00:96::1"), netip.MustParseAddr("fd00:96::2")
			}
			text := fmt.Sprintf("node n\nservice a/b created 2026-01-01T00:00:00Z\ncluster-ip %v\nport a sctp 3868 node-port 30038\n", clusterIP)
			for _, name := range []string{"one", "two"} {
				at := netip.AddrPortFrom(pick(pods[name].Addrs), 3868)
				serve(t, pods[name], name, at)
				text += fmt.Sprintf("endpoint %v - ready serving\n", at)
			}
			text += fmt.Sprintf("service a/empty created 2026-01-01T00:00:00Z\ncluster-ip %v\nport a sctp 3868\n", empty)
			snapshot, err := service.Parse(strings.NewReader(text))
			must(err)
			batch, _ := nft.State{}.Plan(ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, snapshot), time.Time{})
			conn, err := kernel.Open(kernel.Config{NetNS: world.Node.Fd()})
			must(err)
			defer conn.Close()
			must(conn.Apply(batch))
			defer func() { must(conn.DeleteTables(ruleset.DefaultTable)) }()

			reached := map[string]int{}
			for name, from := range map[string]*testnet.Namespace{"a pod": pods["client"].NS, "the node": world.Node} {
				for range 20 {
					server, err := talk(t, from, netip.AddrPortFrom(clusterIP, 3868))
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					reached[server]++
				}
			}
			if reached["one"] == 0 || reached["two"] == 0 || len(reached) != 2 {
				t.Errorf("associations by endpoint: %v", reached)
			}
			// The rules answer with ICMP port unreachable, which the kernel's SCTP does not take for the
			// end of an association that begins: it goes on to ask. So connect ends with its time.
			unserved := socket(t, pods["client"].NS, empty)
			if err := unix.SetsockoptTimeval(unserved, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 2}); err != nil {
				t.Fatal(err)
			}
			if err = unix.Connect(unserved, sockaddr(netip.AddrPortFrom(empty, 3868))); err == nil {
				t.Error("a Service without endpoints has an association")
			}
			t.Logf("associations by endpoint: %v; a Service without endpoints: %v", reached, err)
		})
	}
}
