package health

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func newServer(t *testing.T, addr string, h http.Handler, log io.Writer) *Server {
	t.Helper()
	s, err := NewServer("test", addr, h, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestServe: the end of the context ends a server on a real socket. A request under
// way is still answered.
func TestServe(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := newServer(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-leave
		_, _ = io.WriteString(w, "done")
	}), io.Discard)
	address := make(chan net.Addr, 1)
	listen := s.listen
	s.listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
		l, err := listen(ctx, network, addr)
		if err == nil {
			address <- l.Addr()
		}
		return l, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	url := "http://" + (<-address).String()
	body := make(chan string, 1)
	go func() {
		r, err := http.Get(url)
		if err != nil {
			body <- err.Error()
			return
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		body <- string(b)
	}()
	<-entered
	cancel()
	select {
	case err := <-stopped:
		t.Errorf("Run ended in the middle of a request: %v", err)
	default:
	}
	close(leave)
	if got := <-body; got != "done" {
		t.Errorf("the request under way got %q", got)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := http.Get(url); err == nil {
		t.Error("the server still answers")
	}
}

// fakeListener accepts nothing until it is closed or broken.
type fakeListener struct {
	broken chan error
	closed chan struct{}
}

func newFakeListener() *fakeListener {
	return &fakeListener{make(chan error, 1), make(chan struct{})}
}

func (l *fakeListener) Accept() (net.Conn, error) {
	select {
	case err := <-l.broken:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *fakeListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *fakeListener) Addr() net.Addr { return &net.TCPAddr{Port: 1} }

// TestRetry: the server tries every five seconds to listen, and logs the failure once.
// A broken listener is treated alike.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newServer(t, "127.0.0.1:10256", http.NotFoundHandler(), &log)
		began := time.Now()
		var tries []time.Duration
		listener := newFakeListener()
		s.listen = func(context.Context, string, string) (net.Listener, error) {
			tries = append(tries, time.Since(began))
			if len(tries) < 3 {
				return nil, errors.New("in use")
			}
			listener = newFakeListener()
			return listener, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		listener.broken <- errors.New("broken")
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []time.Duration{0, 5 * time.Second, 10 * time.Second, 65 * time.Second}
		if len(tries) != len(want) {
			t.Fatalf("tried at %v, want %v", tries, want)
		}
		for i := range want {
			if tries[i] != want[i] {
				t.Errorf("tried at %v, want %v", tries, want)
			}
		}
		asked := time.Now()
		cancel()
		if err := <-stopped; err != nil || time.Since(asked) > 0 {
			t.Errorf("Run: %v, after %v", err, time.Since(asked))
		}
		var levels []string
		for line := range strings.Lines(log.String()) {
			level, _, _ := strings.Cut(strings.SplitAfterN(line, "level=", 2)[1], " server=test")
			levels = append(levels, level)
		}
		failed, served := `WARN msg="cannot serve, trying again"`, "INFO msg=serving"
		if want := []string{failed, served, failed, served}; !slices.Equal(levels, want) {
			t.Errorf("logged %q, want %q", levels, want)
		}
		select {
		case <-listener.closed:
		default:
			t.Error("the listener was left open")
		}
	})
}

// TestRequired: a required server does not wait for another process to end, but it does
// try again when its own listener breaks.
func TestRequired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, "127.0.0.1:10266", http.NotFoundHandler(), io.Discard)
		s.Require()
		errTaken := errors.New("taken")
		s.listen = func(context.Context, string, string) (net.Listener, error) { return nil, errTaken }
		began := time.Now()
		if err := s.Run(t.Context()); !errors.Is(err, errTaken) || time.Since(began) != requiredWithin {
			t.Errorf("Run: %v after %v, want %v after %v", err, time.Since(began), errTaken, requiredWithin)
		}

		first := newFakeListener()
		listeners := []net.Listener{first, nil, newFakeListener()}
		s.listen = func(context.Context, string, string) (net.Listener, error) {
			l := listeners[0]
			listeners = listeners[1:]
			if l == nil {
				return nil, errTaken
			}
			return l, nil
		}
		first.broken <- errors.New("broken")
		ctx, cancel := context.WithTimeout(t.Context(), 2*requiredWithin)
		defer cancel()
		if err := s.Run(ctx); err != nil || len(listeners) > 0 {
			t.Errorf("Run: %v, with %d listeners left: want none", err, len(listeners))
		}
	})
}

// TestStopBetweenTries: Run ends without another try.
func TestStopBetweenTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, ":80", http.NotFoundHandler(), io.Discard)
		s.listen = func(context.Context, string, string) (net.Listener, error) { return nil, errors.New("in use") }
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- s.Run(ctx) }()
		time.Sleep(time.Second)
		cancel()
		asked := time.Now()
		if err := <-stopped; err != nil || time.Since(asked) > 0 {
			t.Errorf("Run: %v, after %v", err, time.Since(asked))
		}
	})
}

func TestDisabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, "", http.NotFoundHandler(), io.Discard)
		s.listen = func(context.Context, string, string) (net.Listener, error) {
			t.Error("the server listens")
			return nil, errors.New("no")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestAddresses(t *testing.T) {
	for addr, ok := range map[string]bool{
		"": true, ":10256": true, "0.0.0.0:10256": true, "[::]:10256": true, "localhost:0": true,
		"10256": false, "0.0.0.0": false, "0.0.0.0:http": false, "0.0.0.0:65536": false, "::1:80": false, "127.0.0.1:": false,
	} {
		if _, err := NewServer("test", addr, nil, nil); (err == nil) != ok {
			t.Errorf("%q: %v", addr, err)
		}
	}
}
