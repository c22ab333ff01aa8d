package daemon

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/testnet"
	"nftproxy/watch"
)

// TestTasks: what the process does, what each task waits for, and what it touches.
func TestTasks(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "tasks")
	const all = `objects, touches API server or files
start, touches events, nftables, routes, sysctls
after start: health server, touches sockets
after start: metrics server, touches sockets
after start: probe server, touches sockets
after start: loop, touches nftables
after start: cleaner, touches conntrack
after start: sweeper, touches nftables
after start: refusals, touches nftables
after start: ejections, touches conntrack, endpoints, nodes, API server, nftables
after start: balance, touches conntrack
after start: health check node ports, touches sockets
after start: node ports on localhost, touches sockets
after start: addresses, touches addresses
after start: local routes, touches routes
after start: networks, touches routes
after start: occupancy, touches conntrack
after start: behind, touches log
after start: kube-proxy, touches nftables, iptables, processes, sockets
after start: other tables, touches nftables
after start: invalid packets, touches nftables, sysctls
after start: configuration file, touches files
after start: sleep, touches API server
after start: server version, touches API server
after in force: start-up taint, touches API server
`
	file, _, _ := strings.Cut(all, "after start: invalid packets")
	for name, c := range map[string]struct {
		config Config
		want   string
	}{
		"all that there is": {Config{Source: watch.Source{Master: "http://192.0.2.1:6443"}, File: "config.conf",
			DropInvalid: true, StartupTaint: "example.com/not-ready"}, all},
		"manifests": {Config{Source: watch.Source{Manifests: t.TempDir()}}, file},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Node, c.config.Log, c.config.Rules = "node-1", slog.New(slog.DiscardHandler),
				ruleset.Config{Table: ruleset.DefaultTable}
			var d *Daemon
			if err := ns.Do(func() (err error) {
				d, err = New(t.Context(), c.config)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if diff := cmp.Diff(c.want, listing(d.Tasks)); diff != "" {
				t.Errorf("tasks (-want +got):\n%s", diff)
			}
		})
	}
}

// listing is the tasks as a text, a line each.
func listing(tasks []Task) string {
	var b strings.Builder
	for _, t := range tasks {
		for _, e := range t.After {
			b.WriteString("after " + e.Name + ": ")
		}
		b.WriteString(t.Name + ", touches " + strings.Join(t.Touches, ", "))
		b.WriteString("\n")
	}
	return b.String()
}

// TestRunTasks: a task begins after the events that it waits for, an error ends all, and so does the end of the
// context.
func TestRunTasks(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		first error // of the task that the others wait for
		last  error // of one of those
		want  string
	}{
		"all go on": {nil, nil, "first second ended"},
		"the first": {failed, nil, "first"},
		"a later":   {nil, failed, "first second"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var did []string // one task at a time writes
				event := newEvent("the first has ended")
				tasks := []Task{
					{Name: "second", After: []*Event{event}, Run: func(ctx context.Context) error {
						did = append(did, "second")
						if c.last != nil {
							return c.last
						}
						<-ctx.Done()
						did = append(did, "ended")
						return nil
					}},
					{Name: "first", Ends: event, Run: func(context.Context) error {
						did = append(did, "first")
						return c.first
					}},
					{Name: "never", After: []*Event{event, newEvent("never")}, Run: func(context.Context) error {
						t.Error("a task has begun before an event that it waits for")
						return nil
					}},
				}
				ended := make(chan error)
				go func() { ended <- run(ctx, tasks) }()
				synctest.Wait()
				cancel()
				want := errors.Join(c.first, c.last)
				if err := <-ended; (err == nil) != (want == nil) || want != nil && !errors.Is(want, err) {
					t.Errorf("error %v, want %v", err, want)
				}
				if !slices.Equal(did, strings.Fields(c.want)) {
					t.Errorf("the tasks did %q, want %q", did, c.want)
				}
			})
		})
	}
}
