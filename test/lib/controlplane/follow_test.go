package controlplane

import (
	"context"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFollow: writes are told while the API server is away, and in order when it is back.
func TestFollow(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{NetNS: newNetNS(t)})
	following, stop := context.WithCancel(ctx)
	started, writes, ended := make(chan struct{}), make(chan Write, 10), make(chan error)
	go func() {
		ended <- c.Follow(following, "endpointslices/default", func() { close(started) }, func(w Write) { writes <- w })
	}()
	<-started
	c.KillAPIServer()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}, AddressType: discoveryv1.AddressTypeIPv4,
	}
	if err := c.Seed(ctx, slice); err != nil {
		t.Fatal(err)
	}
	first := <-writes
	if got, ok := first.Object.(*discoveryv1.EndpointSlice); !ok || first.Name != "web-1" || got.Name != "web-1" ||
		first.At.IsZero() {
		t.Errorf("while the API server was away: %+v", first)
	}
	if err := c.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Unstore(ctx, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, namespace: "+
		"default}\n"); err != nil {
		t.Fatal(err)
	}
	if second := <-writes; second.Name != "web-1" || second.Object != nil {
		t.Errorf("after its return: %+v", second)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := c.Follow(ctx, "endpointslices/default", c.Stop, func(Write) {}); err == nil {
		t.Error("etcd has ended, and following it returns no error")
	}
}
