package health

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestCrowd: a client that keeps as many connections as it may gets no more, and the log says so; the others are
// answered.
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
	for i := range maxOfClient {
		if got, err := ask("127.0.0.1"); got != "HTTP/1.1 200" {
			t.Fatalf("connection %d: %q, %v", i, got, err)
		}
	}
	if got, err := ask("127.0.0.1"); err == nil {
		t.Errorf("one more: %q", got)
	}
	if got, err := ask("127.0.0.2"); got != "HTTP/1.1 200" {
		t.Errorf("another client: %q, %v", got, err)
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "too many are open"); n != 1 {
		t.Errorf("%d messages:\n%s", n, log.String())
	}
}
