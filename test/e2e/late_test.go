package e2e

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// lateLists is how much later than everything else the lists come.
const lateLists = 7 * time.Second

// TestLateListsAtRestart: after a restart the Node and the ServiceCIDRs come late. Until
// they are there, the rules in force stay as they are: node ports stay on the node's
// address, and nothing is written.
func TestLateListsAtRestart(t *testing.T) {
	n := newNode(t)
	spec := service("web", "")
	spec.Spec.Type = "NodePort"
	web := n.create(spec)
	// The slices are there before the proxy, so that its first program has them.
	for _, a := range n.addServer("web-1").Addrs {
		n.publish(slice(sliceName("web-1", a), web, a))
	}
	p := n.startProxy()
	p.stop()
	conn := n.nftables()
	before := n.generation(conn)

	p = n.run(n.proxyCommand("--kubeconfig=", "--master="+n.slowAPI(lateLists)))
	p.awaitText(0, "WARN", "waiting for ServiceCIDRs, Node "+n.name+", for 30s at most")
	l, _ := p.awaitSync(0)
	if l.Written == nil || *l.Written != 0 {
		t.Errorf("the first program after the restart wrote something: %s", l.Text)
	}
	// To claim the tables is one transaction at most for each family.
	if after := n.generation(conn); after-before > 2 {
		t.Errorf("the ruleset has changed %d times", after-before)
	}
	p.stop()
}

// slowAPI passes requests on to the API server, and returns its URL on the node.
// Requests for Nodes and ServiceCIDRs wait until the delay is over, which begins
// with the first request: however late the proxy starts, it waits as long.
func (n *node) slowAPI(delay time.Duration) string {
	n.t.Helper()
	config := n.plane.cluster.Client()
	transport, err := rest.TransportFor(config)
	n.must(err)
	target, err := url.Parse(config.Host)
	n.must(err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, proxy.FlushInterval = transport, -1
	begun := sync.OnceValue(time.Now)
	listener, err := n.Node.Listen(n.ctx, "tcp", "127.0.0.1:0")
	n.must(err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun()
		if strings.HasSuffix(r.URL.Path, "/nodes") || strings.HasSuffix(r.URL.Path, "/servicecidrs") {
			select {
			case <-time.After(delay - time.Since(begun())):
			case <-r.Context().Done():
				return
			}
		}
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	n.t.Cleanup(func() { server.Close() })
	return "http://" + listener.Addr().String()
}
