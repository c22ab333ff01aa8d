package listen

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/test/lib/testnet"
)

// TestServe follows a Service's life: clients on localhost reach its endpoints by both protocols in both families
// without route_localnet, endpoints come and go under their feet, and without any they are refused.
func TestServe(t *testing.T) {
	w := newWorld(t)
	first, second := w.serve("first"), w.serve("second")
	w.want("at first", 30080, "refused")
	w.builder.Set(nodePort("web", 30080, first...))
	w.apply(4)
	w.want("with an endpoint", 30080, "first")
	for _, key := range []string{"all", "lo", w.Uplink, "default"} {
		if value, err := w.Node.ReadSysctl("net.ipv4.conf." + key + ".route_localnet"); err != nil || value != "0" {
			t.Errorf("route_localnet of %s is %s, %v", key, value, err)
		}
	}
	old := w.dial("tcp", 30080)
	if id := line(old); id != "first" {
		t.Fatalf("%q answers", id)
	}
	w.builder.Set(nodePort("web", 30080, second...))
	w.load()
	w.want("with another endpoint", 30080, "second")
	w.builder.Set(nodePort("web", 30080))
	w.apply(0)
	w.want("without endpoints", 30080, "refused")
	w.builder.Set(nodePort("web", 30081, second...))
	w.apply(4)
	w.want("with another number", 30081, "second")
	w.want("the former number", 30080, "refused")
	w.builder.Delete(service.NewName("default", "web"))
	w.apply(0)
	w.want("without the Service", 30081, "refused")
	// As at other addresses, an established connection goes on.
	const mark = "still there?"
	if _, err := io.WriteString(old, mark); err != nil {
		t.Error(err)
	}
	for got := ""; !strings.Contains(got, mark); {
		b := make([]byte, 100)
		n, err := old.Read(b)
		if got += string(b[:n]); err != nil {
			t.Fatalf("an established connection answers %q, %v", got, err)
		}
	}
}

// TestSource: endpoints see an address that they can answer.
func TestSource(t *testing.T) {
	w := newWorld(t)
	w.builder.Set(nodePort("web", 30080, w.serve("pod")...))
	w.apply(4)
	for _, to := range []string{"127.0.0.1:30080", "[::1]:30080"} {
		for _, protocol := range []string{testnet.TCP, testnet.UDP} {
			a, err := w.Node.Ask(t.Context(), protocol, netip.MustParseAddrPort(to), patience)
			if err != nil || a.Outcome != testnet.Answered || a.Peer.Addr().IsLoopback() {
				t.Errorf("%s to %s: %+v, %v", protocol, to, a, err)
			}
		}
	}
}

// TestTakenPort: a port that a process of the node has stays with it, others are served, and this one is as soon as the
// process leaves it.
func TestTakenPort(t *testing.T) {
	w := newWorld(t)
	var others []*testnet.Server
	for _, protocol := range []string{testnet.TCP, testnet.UDP} {
		for _, a := range []string{"127.0.0.1:30080", "[::1]:30080"} {
			s, err := w.Node.Serve(protocol, netip.MustParseAddrPort(a), "process")
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, s)
		}
	}
	pods := w.serve("pod")
	w.builder.Set(nodePort("web", 30080, pods...))
	w.builder.Set(nodePort("other", 30081, pods...))
	w.apply(4)
	w.want("the taken port", 30080, "process")
	w.want("another one", 30081, "pod")
	if c := w.ports.Counts(); c.Failures[0] < 2 || c.Failures[1] < 2 ||
		!w.log.has("cannot serve a node port on localhost") {
		t.Errorf("no failure is counted and logged: %+v", c)
	}
	for _, s := range others {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	w.await(8)
	w.want("the port that was left", 30080, "pod")
}

// TestEnds: a connection ends for one side as the other side ends it. What a client sent before its end arrives, and a
// reset is no end.
func TestEnds(t *testing.T) {
	w := newWorld(t)
	pod, err := w.AddPod("pod")
	if err != nil {
		t.Fatal(err)
	}
	w.builder.Set(nodePort("web", 30080, pod.Addrs...))
	w.apply(4)
	l, err := pod.NS.Listen(t.Context(), "tcp", netip.AddrPortFrom(pod.Addrs.V4(), 8080).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			for range 2 {
				c, err := l.Accept()
				if err != nil {
					return err
				}
				sent, err := io.ReadAll(c)
				if err != nil {
					return err
				}
				if string(sent) == "reset" {
					_ = c.(*net.TCPConn).SetLinger(0)
				} else if _, err := fmt.Fprintf(c, "%d bytes", len(sent)); err != nil {
					return err
				}
				_ = c.Close()
			}
			return nil
		}()
	}()
	ask := func(data []byte) (string, error) {
		c := w.dial("tcp", 30080)
		if _, err := c.Write(data); err != nil {
			return "", err
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return "", err
		}
		answer, err := io.ReadAll(c)
		return string(answer), err
	}
	const size = 4 << 20
	if got, err := ask(make([]byte, size)); err != nil || got != fmt.Sprintf("%d bytes", size) {
		t.Errorf("a client that has sent all gets %q, %v", got, err)
	}
	if got, err := ask([]byte("reset")); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the endpoint's reset arrives as %q, %v", got, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestUnreachable: the client of an endpoint that refuses is reset.
func TestUnreachable(t *testing.T) {
	w := newWorld(t)
	pod, err := w.AddPod("pod")
	if err != nil {
		t.Fatal(err)
	}
	w.builder.Set(nodePort("web", 30080, pod.Addrs...))
	w.apply(4)
	w.wantReset(30080)
}

// TestUntranslated: where the rules do not translate what LocalPorts send, as without them, they do not send to
// themselves again and again.
func TestUntranslated(t *testing.T) {
	w := newWorld(t)
	w.builder.Set(nodePort("web", 30080, netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("fd00:244::5")))
	w.notify(4)
	w.wantReset(30080)
	if _, err := w.dial("udp", 30080).Write([]byte("question")); err != nil {
		t.Error(err)
	}
	for !w.log.has("did not come from there") || w.ports.Counts().Connections > 0 {
		time.Sleep(time.Millisecond)
	}
	if c := w.ports.Counts(); c.Sessions > 1 || c.Refused > 0 {
		t.Errorf("%+v", c)
	}
}

// TestStop: when the context ends, all connections and sessions end.
func TestStop(t *testing.T) {
	w := newWorld(t)
	w.builder.Set(nodePort("web", 30080, w.serve("pod")...))
	w.apply(4)
	c, u := w.dial("tcp", 30080), w.dial("udp", 30080)
	if _, err := u.Write([]byte("?")); err != nil || line(u) != "pod" || line(c) != "pod" {
		t.Fatalf("no answer: %v", err)
	}
	w.stop()
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still open")
	}
	if c := w.ports.Counts(); c.Sessions+c.Connections+c.Listeners[0]+c.Listeners[1] != 0 {
		t.Errorf("after the end: %+v", c)
	}
	w.want("after the end", 30080, "refused")
}
