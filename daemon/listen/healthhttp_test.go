package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/test/lib/testnet"
)

// node is a network namespace with HealthPorts.
type node struct {
	*testing.T
	ns      *testnet.Namespace
	ports   *HealthPorts
	healthy atomic.Bool
	// changes has a token for each change that they have carried out.
	changes chan string
	client  *http.Client
}

func startNode(t *testing.T, list ...string) *node {
	n := &node{T: t, ns: testnet.NamespaceForTest(t, "node"), changes: make(chan string, 100)}
	n.healthy.Store(true)
	n.ports = NewHealthPorts(Config{
		NodePortAddresses: nodePorts(t, list...), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Observe: func(open, failed int) { n.changes <- fmt.Sprintf("%d open, %d failed", open, failed) },
		Within:  n.ns.Do,
	}, n.healthy.Load)
	n.client = &http.Client{Transport: &http.Transport{DialContext: n.ns.Dial, DisableKeepAlives: true}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.ports.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return n
}

// sync tells the HealthPorts of a sync and waits until they have followed it.
func (n *node) sync(want string, node service.Node, services ...*service.Service) {
	n.Helper()
	n.ports.Notify(proxy.Sync{Snapshot: snapshot(node, services...)})
	if got := <-n.changes; got != want {
		n.Errorf("%s, want %s", got, want)
	}
}

// ask returns "CODE WEIGHT BODY" of an answer, or why there is none.
func (n *node) ask(method, address string) string {
	n.Helper()
	request, err := http.NewRequestWithContext(n.Context(), method, "http://"+address+"/some/path",
		strings.NewReader("ignored"))
	if err != nil {
		n.Fatal(err)
	}
	r, err := n.client.Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		n.Error(err)
	}
	return fmt.Sprintf("%d %s %s", r.StatusCode, r.Header.Get("X-Load-Balancing-Endpoint-Weight"),
		strings.TrimSpace(string(body)))
}

func (n *node) wantAnswers(when string, want map[string]string) {
	n.Helper()
	got := map[string]string{}
	for address := range want {
		got[address] = n.ask(http.MethodGet, address)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

func (n *node) addAddrs(prefixes ...string) {
	n.Helper()
	for _, p := range prefixes {
		if err := n.ns.AddAddr("lo", netip.MustParsePrefix(p)); err != nil {
			n.Fatal(err)
		}
	}
}

// answerFor is the answer for the Service default/web.
func answerFor(code, local int, healthy bool) string {
	return fmt.Sprintf(
		`%d %d {"service":{"namespace":"default","name":"web"},"localEndpoints":%d,"serviceProxyHealthy":%t}`, code, local,
		local, healthy)
}

// TestHealthHTTP follows the changes of a Service's life: each address of both families
// answers, for every path and method.
func TestHealthHTTP(t *testing.T) {
	n := startNode(t, "0.0.0.0/0", "::/0")
	n.addAddrs("192.0.2.1/32", "2001:db8::1/128")
	n.sync("2 open, 0 failed", service.Node{}, checked("web", 30100, "10.0.0.1:80", "10.0.0.2:80", "[fd00:1::1]:80"))
	everywhere := func(v4, v6 string) map[string]string {
		return map[string]string{"127.0.0.1:30100": v4, "192.0.2.1:30100": v4, "[::1]:30100": v6, "[2001:db8::1]:30100": v6}
	}
	n.wantAnswers("with endpoints", everywhere(answerFor(200, 2, true), answerFor(200, 1, true)))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, "BREW"} {
		if got, want := n.ask(method, "192.0.2.1:30100"), answerFor(200, 2, true); got != want {
			t.Errorf("%s: %s, want %s", method, got, want)
		}
	}
	if got := n.ask(http.MethodHead, "192.0.2.1:30100"); got != "200 2 " {
		t.Errorf("HEAD: %q", got)
	}
	n.healthy.Store(false)
	n.wantAnswers("when the proxy is unwell", everywhere(answerFor(503, 2, false), answerFor(503, 1, false)))
	n.healthy.Store(true)
	n.sync("2 open, 0 failed", service.Node{}, checked("web", 30100, "10.0.0.1:80,terminating",
		"[fd00:1::1]:80,elsewhere"))
	n.wantAnswers("without endpoints", everywhere(answerFor(503, 0, true), answerFor(503, 0, true)))
	n.sync("0 open, 0 failed", service.Node{})
	n.wantAnswers("without the service", everywhere("refused", "refused"))
}

// TestHealthKeptConnection: a load balancer's connection outlives a change of endpoints, but
// not the port.
func TestHealthKeptConnection(t *testing.T) {
	n := startNode(t, "0.0.0.0/0", "2001:db8::/32")
	dials := 0
	n.client.Transport = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn,
		error) {
		dials++
		return n.ns.Dial(ctx, network, address)
	}}
	for local := range 4 {
		var endpoints []string
		for i := range local {
			endpoints = append(endpoints, fmt.Sprintf("10.0.0.%d:80", i+1))
		}
		n.sync("1 open, 0 failed", service.Node{}, checked("web", 30100, endpoints...))
		code := 200
		if local == 0 {
			code = 503
		}
		n.wantAnswers("on one connection", map[string]string{"127.0.0.1:30100": answerFor(code, local, true)})
	}
	if dials != 1 {
		t.Errorf("%d connections, want one", dials)
	}
	n.sync("0 open, 0 failed", service.Node{})
	// The connection ends once it is idle, which may be after one more answer.
	for ended := time.Now(); n.ask(http.MethodGet, "127.0.0.1:30100") != "refused"; {
		if time.Since(ended) > 10*time.Second {
			t.Fatal("the connection does not end")
		}
	}
}

// TestHealthNodeAddresses: the ports follow the addresses that serve node ports, also to an
// address that the node does not have yet.
func TestHealthNodeAddresses(t *testing.T) {
	n := startNode(t, "192.0.2.0/24", "2001:db8::/32")
	n.addAddrs("192.0.2.1/32", "192.0.2.2/32", "198.51.100.1/32", "2001:db8::1/128")
	web := checked("web", 30100, "10.0.0.1:80", "[fd00:1::1]:80")
	well := answerFor(200, 1, true)
	n.sync("2 open, 0 failed", service.Node{HostAddresses: addrs("192.0.2.1", "198.51.100.1", "2001:db8::1")}, web)
	n.wantAnswers("at first", map[string]string{
		"192.0.2.1:30100": well, "[2001:db8::1]:30100": well,
		"192.0.2.2:30100": "refused", "198.51.100.1:30100": "refused", "127.0.0.1:30100": "refused", "[::1]:30100": "refused",
	})
	n.sync("4 open, 0 failed", service.Node{HostAddresses: addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1")},
		web)
	n.addAddrs("192.0.2.3/32")
	n.wantAnswers("with two more", map[string]string{
		"192.0.2.1:30100": well, "192.0.2.2:30100": well, "192.0.2.3:30100": well, "[2001:db8::1]:30100": well,
	})
	n.sync("2 open, 0 failed", service.Node{HostAddresses: addrs("192.0.2.2", "2001:db8::2")}, web)
	n.addAddrs("2001:db8::2/128")
	n.wantAnswers("with others", map[string]string{
		"192.0.2.1:30100": "refused", "192.0.2.2:30100": well, "[2001:db8::1]:30100": "refused", "[2001:db8::2]:30100": well,
	})
}

// TestHealthPortTaken: another process has the port of one Service in one family. The other
// Service answers, and so does the other family.
func TestHealthPortTaken(t *testing.T) {
	n := startNode(t, "0.0.0.0/0", "::/0")
	l, err := n.ns.Listen(t.Context(), "tcp4", "127.0.0.1:30200")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n.sync("3 open, 1 failed", service.Node{}, checked("web", 30100, "10.0.0.1:80"), checked("other", 30200))
	n.wantAnswers("beside it", map[string]string{"127.0.0.1:30100": answerFor(200, 1, true),
		"[::1]:30100": answerFor(503, 0, true)})
	if got := n.ask(http.MethodGet, "[::1]:30200"); !strings.HasPrefix(got,
		`503 0 {"service":{"namespace":"default","name":"other"}`) {
		t.Errorf("the other family: %s", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// Another listener is closed, and then the address is tried again.
	n.sync("2 open, 0 failed", service.Node{}, checked("web", 30200, "10.0.0.1:80"))
	n.wantAnswers("when it is free", map[string]string{"127.0.0.1:30200": answerFor(200, 1, true),
		"127.0.0.1:30100": "refused"})
}
