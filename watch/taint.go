package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// taintRetries says when a failed removal is tried again: after 5 to 10 s, and then after
// twice as long each time, at last 5 to 10 minutes. The randomness keeps the nodes of a cluster
// from asking together.
func taintRetries() wait.Backoff {
	return wait.Backoff{Duration: 5 * time.Second, Factor: 2, Jitter: 1, Steps: 100, Cap: 5 * time.Minute}
}

// RemoveTaint removes the taints with a key from a Node until the context ends: those that the Node
// has, and those that the kubelet adds when it registers again. It calls report after each attempt,
// with nil for a success. RemoveTaint needs the right to list, watch and patch Nodes.
func RemoveTaint(ctx context.Context, client *Client, node, key string, report func(error)) {
	latest := make(chan *corev1.Node, 1)
	put := func(object any) {
		if n, ok := object.(*corev1.Node); ok {
			select {
			case <-latest:
			default:
			}
			latest <- n // The informer calls from one goroutine, so there is room.
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.core, "nodes", metav1.NamespaceAll,
			fields.OneTermEqualSelector("metadata.name", node)),
		ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    put,
			UpdateFunc: func(_, object any) { put(object) },
		},
	})
	go informer.RunWithContext(ctx)
	var retry <-chan time.Time
	retries := taintRetries()
	var n *corev1.Node
	for {
		select {
		case <-ctx.Done():
			return
		case n = <-latest:
		case <-retry:
		}
		retry = nil
		left := withoutTaint(n.Spec.Taints, key)
		if len(left) == len(n.Spec.Taints) {
			continue
		}
		err := setTaints(ctx, client, n, left)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			// Where the Node has changed in between, it also comes by the informer.
			retry = time.After(retries.Step())
		} else {
			retries = taintRetries()
		}
		report(err)
	}
}

func withoutTaint(taints []corev1.Taint, key string) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool { return t.Key == key })
}

// setTaints replaces a Node's taints, if the Node is still the one that was read.
func setTaints(ctx context.Context, client *Client, n *corev1.Node, taints []corev1.Taint) error {
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/resourceVersion", "value": n.ResourceVersion},
		{"op": "replace", "path": "/spec/taints", "value": taints},
	})
	if err != nil {
		return fmt.Errorf("encode the taints of Node %s: %w", n.Name, err)
	}
	if err := client.core.Patch(types.JSONPatchType).Resource("nodes").Name(n.Name).Body(patch).Do(ctx).
		Into(&corev1.Node{}); err != nil {
		return fmt.Errorf("patch Node %s: %w", n.Name, err)
	}
	return nil
}
