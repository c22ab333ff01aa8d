package listen

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/model/service"
)

// feedback returns a socket with a datagram in its queue, and a take for it that puts in two for each: as much as the
// fastest sender could.
func feedback(t *testing.T, ports *LocalPorts, fed chan<- struct{}) (socket, func([]byte, netip.AddrPort)) {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := ports.newSocket(c)
	if err != nil {
		t.Fatal(err)
	}
	sender, err := net.DialUDP("udp", nil, c.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sender.Close() })
	taken := 0
	take := func([]byte, netip.AddrPort) {
		for range 2 {
			_, _ = sender.Write([]byte("datagram"))
		}
		if taken++; taken == 1000 {
			close(fed)
		}
	}
	take(nil, netip.AddrPort{})
	return s, take
}

// TestCloseInFlood: a socket whose queue is never empty is closed at once, alone and as a session's.
func TestCloseInFlood(t *testing.T) {
	at := address{service.UDP, netip.MustParseAddrPort("127.0.0.1:30080")}
	for name, closeIt := range map[string]func(*sessions, *session){
		"socket":          func(_ *sessions, v *session) { _ = v.socket.Close() },
		"session":         (*sessions).close,
		"all of a port":   func(s *sessions, v *session) { s.closeAll(v.key.address) },
		"one of too many": func(s *sessions, _ *session) { crowd(s, at) },
	} {
		t.Run(name, func(t *testing.T) {
			ports := NewLocalPorts(Config{
				NodePortAddresses: nodePorts(t, "localhost"), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			})
			fed, ended, closed := make(chan struct{}), make(chan error, 1), make(chan struct{})
			s, take := feedback(t, ports, fed)
			v := &session{key: sessionKey{address: at}, socket: s}
			ports.sessions.add(v)
			go func() { ended <- s.receive(take) }()
			<-fed
			go func() { closeIt(ports.sessions, v); close(closed) }()
			select {
			case <-closed:
			case <-time.After(patience):
				t.Fatal("closing waits for the end of the flood")
			}
			if err := <-ended; err == nil {
				t.Error("receiving ends without an error")
			}
		})
	}
}

// crowd adds so many sessions of a port that the oldest has to leave.
func crowd(s *sessions, at address) {
	for i := range maxSessionsOfPort {
		v := &session{key: sessionKey{at, netip.AddrPortFrom(netip.IPv6Loopback(), uint16(1+i))}}
		v.touch()
		s.add(v)
	}
}

// TestHealthPortWithoutDescriptors: a health port whose server sleeps, since the process has no descriptor for a
// connection, does not keep others from changing.
func TestHealthPortWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "0.0.0.0/0", "2001:db8::/32")
		b.sync(service.Node{}, checked("web", 30100))
		web := b.net.open[netip.MustParseAddrPort("0.0.0.0:30100")]
		for range 8 { // The server sleeps longer each time.
			web.broken <- syscall.EMFILE
			time.Sleep(2 * time.Second)
		}
		web.broken <- syscall.EMFILE
		synctest.Wait()
		b.sync(service.Node{}, checked("other", 30200))
		b.wantListening("at once", "0.0.0.0:30200")
	})
}
