package watch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"nftproxy/watch/wire"
)

// Source says where objects come from: an API server, by a kubeconfig file or an address, without either as a pod's
// service account has it; or a file or directory of manifests.
type Source struct{ Kubeconfig, Master, Manifests string }

// Kind is the source's name in the output of commands.
func (s Source) Kind() string {
	if s.Manifests != "" {
		return "manifests"
	}
	return "kubernetes"
}

// String describes the source to a person.
func (s Source) String() string {
	if s.Manifests != "" {
		return "the manifests at " + s.Manifests
	}
	return "the API server"
}

// Connection leads to a source.
type Connection struct {
	// Client asks the API server; nil with manifests.
	Client *Client

	manifests string
	config    *rest.Config
	dialer    *dialer
}

// Connect reads the configuration, and sends no request.
func (s Source) Connect() (*Connection, error) {
	if s.Manifests != "" {
		return &Connection{manifests: s.Manifests}, nil
	}
	config, err := ClientConfig(s.Kubeconfig, s.Master)
	if err != nil {
		return nil, err
	}
	d, err := newDialer(config)
	if err != nil {
		return nil, err
	}
	config.Dial = d.DialContext
	client, err := NewClient(config)
	if err != nil {
		return nil, err
	}
	return &Connection{Client: client, config: config, dialer: d}, nil
}

// Run keeps the watcher's mailbox filled until the context ends.
func (c *Connection) Run(ctx context.Context, w *Watcher) error {
	if c.Client == nil {
		return w.RunManifests(ctx, c.manifests)
	}
	c.reportTo(w.AddAPIServer)
	return w.RunKubernetes(ctx, c.Client)
}

// reportTo has the addresses of connections to the API server reported from now on.
func (c *Connection) reportTo(report func(netip.AddrPort)) { c.dialer.report.Store(&report) }

// Answers says whether somebody takes or refuses a connection at the API server's address within a time. A server that
// is slow does, and one whose node is lost does not.
func (c *Connection) Answers(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := newConnector().connect(ctx, "tcp", c.dialer.server)
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	_ = conn.Close() // Nothing was written.
	return true
}

// Renew closes all connections to the API server: each request that is under way fails at once, and is sent again
// on a new connection.
func (c *Connection) Renew() {
	if c.Client != nil {
		c.dialer.open.CloseAll()
	}
}

// Recorder returns a function that writes events to the API server until the context ends, for this node, and calls
// failed where that does not work. With manifests it writes none. It never blocks. At most five events a second are
// written, and ten at once, as by kube-proxy.
func (c *Connection) Recorder(ctx context.Context, node string, failed func(error)) (record func(Event), err error) {
	if c.Client == nil {
		return func(Event) {}, nil
	}
	config := rest.CopyConfig(c.config)
	config.QPS, config.Burst = 5, 10
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for events: %w", err)
	}
	core, err := newCore(config, httpClient, serializer.NewCodecFactory(wire.Scheme()))
	if err != nil {
		return nil, fmt.Errorf("make a client for events: %w", err)
	}
	return newRecorder(ctx, eventClient{core}, node, failed), nil
}
