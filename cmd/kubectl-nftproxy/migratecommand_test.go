package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/cmd/kubectl-nftproxy/migration"
)

// TestMigrateCommand: what the command says where it stops, and that an interrupt leaves no pod.
func TestMigrateCommand(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b")
	f.nodes["b"].red = true
	server := httptest.NewServer(f.server(0, nil))
	defer server.Close()
	args := []string{"migrate", "--server", server.URL, "--to", "nftproxy"}
	out, errs, code := runPlugin(t.Context(), args...)
	if code != 1 || !strings.Contains(out, "b: check: NOT RIGHT: red: ") ||
		!strings.Contains(errs, "stopped at b: check: red: kernel: it is too old") ||
		!strings.Contains(errs, "kubectl nftproxy migrate --to kube-proxy") {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
	f.nodes["b"].red = false
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	f.onWrite = func(int) { interrupt() } // A pod has been made.
	f.lease = nil
	if out, errs, code := runPlugin(ctx, args...); code != 2 || !strings.Contains(errs, "run the same command again") {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settle()
	if text := f.state(); strings.Contains(text, "nftproxy-migrate") {
		t.Errorf("a pod is left:\n%s", text)
	}
}

// TestMigrateAlone: while one migration runs, another one does not begin.
func TestMigrateAlone(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a")
	server := httptest.NewServer(f.server(0, nil))
	defer server.Close()
	of, err := cluster.New(&rest.Config{Host: server.URL},
		cluster.DefaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	probing, end := make(chan struct{}), make(chan struct{})
	o := migration.Options{To: migration.Nftproxy, AtOnce: 1, Period: time.Millisecond, Patience: 20 * time.Second}
	ended := make(chan error, 1)
	go func() {
		o := o
		o.Out = &first
		var once sync.Once
		o.Probe = func(context.Context, []string) error {
			once.Do(func() {
				close(probing)
				<-end
			})
			return nil
		}
		ended <- migration.Run(t.Context(), of, o)
	}()
	<-probing
	o.Out = &second
	if err := migration.Run(t.Context(), of, o); err == nil || !strings.Contains(err.Error(), "another migration runs") {
		t.Errorf("%v\n%s", err, second.String())
	}
	close(end)
	if err := <-ended; err != nil || strings.Count(first.String(), "a: probe: the Services answer") != 2 {
		t.Errorf("%v\n%s", err, first.String())
	}
	f.check(t, "alone")
}

// TestMigrateTakesOver: the Lease of a killed run is waited for, and taken.
func TestMigrateTakesOver(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a")
	now := metav1.NowMicro()
	f.lease = &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "nftproxy-migrate", Namespace: "kube-system"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("killed"), LeaseDurationSeconds: new(int32(1)), AcquireTime: &now,
			RenewTime: &now}}
	server := httptest.NewServer(f.server(0, nil))
	defer server.Close()
	of, err := cluster.New(&rest.Config{Host: server.URL}, cluster.DefaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = migration.Run(t.Context(), of, migration.Options{To: migration.Nftproxy, AtOnce: 1, Period: time.Millisecond,
		Patience: 20 * time.Second, Out: &out})
	if err != nil || f.lease != nil ||
		!strings.HasPrefix(out.String(), "Lease nftproxy-migrate: killed: has it; waiting") {
		t.Errorf("%v, Lease %v\n%s", err, f.lease, out.String())
	}
	f.check(t, "takes over")
}

// TestMigrateLeavesVirtualServers: the ranges of other programs' virtual servers are those of nftproxy on the node.
func TestMigrateLeavesVirtualServers(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]func(f *fakeProxies){
		"": func(*fakeProxies) {},
		"--ipvs-exclude-cidrs=192.0.2.0/24,198.51.100.0/24": func(f *fakeProxies) {
			f.config = "mode: ipvs\nipvs:\n  excludeCIDRs: [192.0.2.0/24, 198.51.100.0/24]\n"
		},
		"--ipvs-exclude-cidrs=203.0.113.0/24": func(f *fakeProxies) {
			c := &f.sets[migration.Nftproxy].Spec.Template.Spec.Containers[0]
			c.Args = append(c.Args, "--ipvs-exclude-cidrs", "203.0.113.0/24")
		},
	} {
		f := newFakeProxies(true, "a")
		set(f)
		out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
		if got := strings.TrimPrefix(strings.Join(f.cleaned, " "), "cleanup --kube-proxy"); err != nil ||
			strings.TrimSpace(got) != want {
			t.Errorf("the command has %q, want %q, %v\n%s", got, want, err, out)
		}
	}
}
