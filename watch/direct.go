package watch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"nftproxy/watch/wire"
)

// direct lists and watches for a reflector, and takes the changes of a watch into the store itself. The reflector hears
// of the end of a watch only, with the version that it had reached.
type direct struct {
	client *wire.Client
	store  cache.ReflectorStore
}

// List returns the list.
func (d direct) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return d.client.List(ctx, options)
}

// Watch follows the changes since a version.
func (d direct) Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	return d.client.Watch(ctx, options, func(e apiwatch.Event) {
		change := d.store.Update
		if e.Type == apiwatch.Deleted {
			change = d.store.Delete
		}
		if err := change(e.Object); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Unable to take a change", "type", e.Type)
		}
	})
}
