package watch

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"nftproxy/model/service"
)

// TestAPIServerSilent: an API server that never answers, as behind a wrong address, is
// reported like one that refuses. client-go treats the time-out of a watch as its regular
// end.
func TestAPIServerSilent(t *testing.T) {
	config, err := ClientConfig("", "http://192.0.2.1:6443")
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	client, err := NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	o := &observer{T: t, out: service.NewMailbox(), reported: make(chan Problem, 1000)}
	o.Watcher = NewWatcher(Options{Node: "node-0", Report: func(p Problem) { o.reported <- p }}, o.out)
	o.run(client)
	// The reports come in any order, also that of the wait itself.
	missing, waits := map[string]bool{"services": true, "endpointslices": true}, false
	o.awaitProblem(func(p Problem) bool {
		wait := (*AwaitError)(nil)
		waits = waits || errors.As(p, &wait)
		e := (*RequestError)(nil)
		if errors.As(p, &e) && missing[e.Resource] {
			delete(missing, e.Resource)
			if want := "no answer from the API server at 192.0.2.1:6443 "; !strings.Contains(p.Error(), want) {
				t.Errorf("%s: %q does not have %q", e.Resource, p.Error(), want)
			}
		}
		return len(missing) == 0 && waits
	})
	if words := strings.Join(o.Awaiting(), ", "); !strings.Contains(words, "Services") ||
		!strings.Contains(words, "192.0.2.1:6443") {
		t.Errorf("waiting for %q: the address is missing", words)
	}
}
