package watchers

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/watch"
)

// totals are sums over all watchers of a worker.
type totals struct {
	// CPU is the time of the whole process.
	CPU time.Duration
	// Received and Sent are bytes on the wire, with TLS; Connections were made for them.
	Received, Sent, Connections int64
	// Synced is how many watchers have had their first snapshot.
	Synced int64
	// Slices is how many changes of EndpointSlices the watchers have seen, and Moved how many watchers have seen one
	// since the last mark.
	Slices, Moved int64
}

// worker runs watchers in this process.
type worker struct {
	received, sent, connections, synced atomic.Int64

	watchers []*watch.Watcher
	// marks are the changes of EndpointSlices that each watcher had seen at the last mark.
	marks []uint64
}

// mark is the question after which Moved begins again.
const mark = "mark"

// Work runs watchers, each with a connection of its own, until in ends. For each line that it reads it writes its totals
// as a line of JSON. The line mark sets a mark before. The watchers are those of nftproxy run, of nodes that NodeName names.
func Work(ctx context.Context, kubeconfig string, count int, in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &worker{}
	for i := range count {
		if err := w.start(ctx, kubeconfig, NodeName(i)); err != nil {
			return err
		}
	}
	answers := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if lines.Text() == mark {
			w.mark()
		}
		t, err := w.totals()
		if err == nil {
			err = answers.Encode(t)
		}
		if err != nil {
			return fmt.Errorf("tell the totals: %w", err)
		}
	}
	return nil
}

// NodeName is the name of a watcher's Node.
func NodeName(i int) string { return fmt.Sprintf("watcher-%d", i) }

func (w *worker) start(ctx context.Context, kubeconfig, node string) error {
	config, err := watch.ClientConfig(kubeconfig, "")
	if err != nil {
		return err
	}
	config.Dial = w.dial // clients with the same one would share connections
	client, err := watch.NewClient(config)
	if err != nil {
		return err
	}
	watcher := watch.NewWatcher(watch.Options{
		Node: node, Synced: func() { w.synced.Add(1) },
	}, service.NewMailbox())
	w.watchers, w.marks = append(w.watchers, watcher), append(w.marks, 0)
	go func() { _ = watcher.RunKubernetes(ctx, client) }() // it ends with ctx, without an error
	return nil
}

func (w *worker) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.connections.Add(1)
	return &countedConn{conn, w}, nil
}

// countedConn counts its bytes.
type countedConn struct {
	net.Conn
	worker *worker
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.worker.received.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.worker.sent.Add(int64(n))
	return n, err
}

func (w *worker) mark() {
	for i, watcher := range w.watchers {
		w.marks[i] = watcher.Changes().EndpointSlices
	}
}

func (w *worker) totals() (totals, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		return totals{}, fmt.Errorf("clock_gettime: %w", err)
	}
	t := totals{
		CPU: time.Duration(now.Nano()), Received: w.received.Load(), Sent: w.sent.Load(), Connections: w.connections.Load(),
		Synced: w.synced.Load(),
	}
	for i, watcher := range w.watchers {
		seen := watcher.Changes().EndpointSlices
		t.Slices += int64(seen)
		if seen > w.marks[i] {
			t.Moved++
		}
	}
	return t, nil
}
