package watch

import (
	"context"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"nftproxy/model/service"
)

// TestSynced: Synced is called once, before the first snapshot is made. By then the
// objects are there and the update waits for nothing more.
func TestSynced(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), manifest("a", "10.96.0.1"))
	s := newAPIServer(t)
	s.set("services", uniformService(0))
	for source, run := range map[string]func(*Watcher, context.Context) error{
		"API server": func(w *Watcher, ctx context.Context) error { return w.RunKubernetes(ctx, s.client()) },
		"manifests":  func(w *Watcher, ctx context.Context) error { return w.RunManifests(ctx, dir) },
	} {
		t.Run(source, func(t *testing.T) {
			var w *Watcher
			var called atomic.Int32
			out := service.NewMailbox()
			w = NewWatcher(Options{Node: "node-0", NodeTimeout: time.Millisecond, AwaitPodCIDRs: true,
				PodCIDRTimeout: time.Millisecond, Synced: func() {
					called.Add(1)
					w.mu.Lock()
					defer w.mu.Unlock()
					if objects, made := len(w.index.knownServices()), w.index.builder.Snapshot().Services.Len(); objects != 1 ||
						made != 0 || w.synced {
						t.Errorf("called with %d objects, %d services made of them, update let go: %t", objects, made, w.synced)
					}
				}}, out)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- run(w, ctx) }()
			for _, addr := range []string{"192.0.2.1", "192.0.2.2"} {
				select {
				case <-out.C():
				case <-time.After(patience):
					t.Fatal("no update")
				}
				out.Take()
				w.SetHostAddresses([]netip.Addr{netip.MustParseAddr(addr)}, nil)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if n := called.Load(); n != 1 {
				t.Errorf("called %d times", n)
			}
		})
	}
}
