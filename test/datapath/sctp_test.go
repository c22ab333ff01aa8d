package datapath

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

// socket makes an SCTP socket in a namespace. The kernel would end a blocking call that has a time limit
// with EINTR for each signal, and Go's scheduler sends signals. So no call blocks, and the runtime waits.
func socket(t *testing.T, ns *testnet.Namespace, like netip.Addr) *os.File {
	t.Helper()
	domain := unix.AF_INET
	if like.Is6() {
		domain = unix.AF_INET6
	}
	fd := -1
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		return os.NewSyscallError("socket", err)
	})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skipf("this kernel has no SCTP: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "SCTP socket")
}

// listen makes a listening socket in a namespace.
func listen(t *testing.T, ns *testnet.Namespace, at netip.AddrPort) *os.File {
	t.Helper()
	listener := socket(t, ns, at.Addr())
	conn, err := listener.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = errors.Join(unix.Bind(int(fd), sockaddr(at)), unix.Listen(int(fd), 16))
	})
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return listener
}

// accept waits for an association. Closing the listener ends the wait; shutdown does not wake a blocking accept on
// Linux 5.10 and 6.1. SCTP's accept can end with EINTR although it does not block.
func accept(listener *os.File) (*os.File, error) {
	conn, err := listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	peer := -1
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		failed = unix.EINTR
		for failed == unix.EINTR {
			peer, _, failed = unix.Accept4(int(fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		}
		return failed != unix.EAGAIN
	})
	if err = errors.Join(err, os.NewSyscallError("accept4", failed)); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(peer), "SCTP association"), nil
}

// connect opens an association, within the time limit.
func connect(socket *os.File, to netip.AddrPort, limit time.Duration) error {
	if err := socket.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	conn, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { failed = unix.Connect(int(fd), sockaddr(to)) })
	if err != nil || failed != unix.EINPROGRESS {
		return errors.Join(err, os.NewSyscallError("connect", failed))
	}
	err = conn.Write(func(fd uintptr) bool {
		number, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if failed = err; err == nil && number != 0 {
			failed = unix.Errno(number)
		}
		if failed == nil {
			_, failed = unix.Getpeername(int(fd))
		}
		return failed != unix.ENOTCONN
	})
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return os.NewSyscallError("connect", failed)
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
	listener := listen(t, pod.NS, at)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			peer, err := accept(listener)
			if err != nil && t.Context().Err() != nil {
				return // the end of the test closed the listener
			}
			if err == nil {
				err = answer(peer, name)
			}
			if err != nil {
				t.Errorf("the server %s: %v", name, err)
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
}

// answer serves an association until its end.
func answer(peer *os.File, name string) error {
	defer peer.Close()
	if err := peer.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	buf := make([]byte, 256)
	for {
		n, err := peer.Read(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := peer.Write([]byte(name + " " + string(buf[:n]))); err != nil {
			return err
		}
	}
}

// talk opens an association, exchanges messages, and returns the name of the server.
func talk(t *testing.T, from *testnet.Namespace, to netip.AddrPort) (server string, err error) {
	t.Helper()
	client := socket(t, from, to.Addr())
	defer client.Close()
	if err := connect(client, to, limit); err != nil {
		return "", err
	}
	buf := make([]byte, 256)
	for i := range 5 {
		message := fmt.Sprintf("message %d", i)
		if _, err := client.Write([]byte(message)); err != nil {
			return "", err
		}
		n, err := client.Read(buf)
		if err != nil {
			return "", err
		}
		name, echo, _ := strings.Cut(string(buf[:n]), " ")
		if echo != message || server != "" && name != server {
			return "", fmt.Errorf("%q after %q, from %s", buf[:n], message, server)
		}
		server = name
	}
	return server, nil
}

// TestAssociations: the kernel's own SCTP reaches Services, in place of the single packets of package testnet, which
// kernels without SCTP can send too (those skip this test). Associations through the cluster IP, from a pod and from
// the node, reach the Service's endpoints, each of them, and one to a Service without endpoints comes to nothing.
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
	for family, pick := range map[string]func(testnet.Addrs) netip.Addr{
		"IPv4": testnet.Addrs.V4, "IPv6": testnet.Addrs.V6} {
		t.Run(family, func(t *testing.T) {
			clusterIP, empty := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")
			if family == "IPv6" {
				clusterIP, empty = netip.MustParseAddr("fd00:96::1"), netip.MustParseAddr("fd00:96::2")
			}
			text := fmt.Sprintf("node n\nservice a/b created 2026-01-01T00:00:00Z\ncluster-ip %v\nport a sctp 3868 node-port "+
				"30038\n", clusterIP)
			for _, name := range []string{"one", "two"} {
				at := netip.AddrPortFrom(pick(pods[name].Addrs), 3868)
				serve(t, pods[name], name, at)
				text += fmt.Sprintf("endpoint %v - ready serving\n", at)
			}
			text += fmt.Sprintf("service a/empty created 2026-01-01T00:00:00Z\ncluster-ip %v\nport a sctp 3868\n", empty)
			snapshot, err := gen.ReadSnapshot(strings.NewReader(text))
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
			// The rules answer with ICMP port unreachable. The kernel's SCTP does not take that for the end of an
			// association that begins, and goes on to ask. So connect finds the error, or ends with its time.
			unserved := socket(t, pods["client"].NS, empty)
			defer unserved.Close()
			err = connect(unserved, netip.AddrPortFrom(empty, 3868), 2*time.Second)
			if err == nil {
				t.Error("a Service without endpoints has an association")
			}
			t.Logf("associations by endpoint: %v; a Service without endpoints: %v", reached, err)
		})
	}
}
