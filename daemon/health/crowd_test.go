package health

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestCrowd: clients that keep as many connections as they may do not keep others from the server, and the log says
// so for each connection that had to go.
func TestCrowd(t *testing.T) {
	var log bytes.Buffer
	s := newServer(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok")
	}), &log)
	address := make(chan string, 1)
	listen := s.listen
	s.listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
		l, err := listen(ctx, network, addr)
		if err == nil {
			address <- l.Addr().String()
		}
		return l, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	at := <-address
	ask := func(from string) (string, error) {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := dialer.DialContext(ctx, "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return "", err
		}
		first := make([]byte, len("HTTP/1.1 200"))
		_, err = io.ReadFull(c, first)
		return string(first), err
	}
	for i := range maxConnections {
		if got, err := ask(fmt.Sprintf("127.0.0.%d", 1+i%(maxConnections/maxOfClient))); got != "HTTP/1.1 200" {
			t.Fatalf("connection %d: %q, %v", i, got, err)
		}
	}
	for i, from := range []string{"127.0.0.1", "127.0.0.9", "127.0.0.9"} {
		if got, err := ask(from); got != "HTTP/1.1 200" {
			t.Errorf("connection %d beyond the bound, from %s: %q, %v", i, from, got, err)
		}
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "too many are open"); n != 3 {
		t.Errorf("%d messages:\n%s", n, log.String())
	}
}
