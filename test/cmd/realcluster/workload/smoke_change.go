package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// restart is a patch that replaces all pods, as `kubectl rollout restart` does.
func restart() []byte {
	return fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`,
		time.Now().Format(time.RFC3339Nano))
}

// updateDeployment: all endpoints are replaced, and no connection fails.
func updateDeployment(ctx context.Context, f *fixture) (string, error) {
	return f.Under(ctx, f.Nodes(), func() error {
		_, err := f.Client.AppsV1().Deployments(Namespace).Patch(ctx, "web", types.StrategicMergePatchType, restart(),
			metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("restart the Deployment web: %w", err)
		}
		return errors.Join(f.AwaitDeployment(ctx, Namespace, "web"), f.awaitEnds(ctx))
	})
}

// awaitEnds returns once no pod of web is ending: then nothing can reach one that
// has ended, either.
func (f *fixture) awaitEnds(ctx context.Context) error {
	list := cache.NewFilteredListWatchFromClient(f.Client.CoreV1().RESTClient(), "pods", Namespace,
		func(o *metav1.ListOptions) {
			o.LabelSelector = "app=web"
		})
	ending := map[string]bool{}
	_, err := watchtools.UntilWithSync(ctx, list, &corev1.Pod{}, func(store cache.Store) (bool, error) {
		for _, o := range store.List() {
			if p, ok := o.(*corev1.Pod); ok && p.DeletionTimestamp != nil {
				ending[p.Name] = true
			}
		}
		return len(ending) == 0, nil
	}, func(e watch.Event) (bool, error) {
		if p, ok := e.Object.(*corev1.Pod); ok && e.Type == watch.Deleted {
			delete(ending, p.Name)
		}
		return len(ending) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the end of pods: %w", err)
	}
	return nil
}

// updateProxy: all pods of the proxy are replaced, and no connection fails.
func updateProxy(ctx context.Context, f *fixture) (string, error) {
	return f.Under(ctx, f.Nodes(), func() error {
		_, err := f.Client.AppsV1().DaemonSets("kube-system").Patch(ctx, "nftproxy", types.StrategicMergePatchType, restart(),
			metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("restart the DaemonSet nftproxy: %w", err)
		}
		return f.AwaitDaemonSet(ctx, "kube-system", "nftproxy")
	})
}

// drainNode: a node's pods are evicted, and no connection fails, not even by the
// node itself.
func drainNode(ctx context.Context, f *fixture) (string, error) {
	node := f.Nodes()[0]
	seen, err := f.Under(ctx, f.Nodes(), func() error { return f.drain(ctx, node) })
	if err == nil {
		err = f.hasNoPods(ctx, node)
	}
	return node + ": " + seen, errors.Join(err, f.Kubectl(ctx, "uncordon", node))
}

func (f *fixture) drain(ctx context.Context, node string) error {
	return f.Kubectl(ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
}

// hasNoPods checks that a drain had something to do and did it.
func (f *fixture) hasNoPods(ctx context.Context, node string) error {
	pods, err := f.Pods(ctx, "app=web")
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Spec.NodeName == node {
			return fmt.Errorf("%s still has the pod %s", node, p.Name)
		}
	}
	return nil
}

// joinNode: a new node serves Services like the others, and its pods are reached
// from everywhere; then it goes, and no connection to the others fails.
func joinNode(ctx context.Context, f *fixture) (seen string, err error) {
	old := f.Nodes()
	node, err := f.AddNode(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.leave(context.WithoutCancel(ctx), node)) }()
	err = errors.Join(f.AwaitDaemonSets(ctx), f.AwaitDaemonSet(ctx, Namespace, "client"))
	if err != nil {
		return "", err
	}
	for _, look := range []func(context.Context, *fixture) (string, error){byName, clusterIPs, nodePorts} {
		if _, err := look(ctx, f); err != nil {
			return "", err
		}
	}
	// Endpoints move to the node, since each node has at most one more than any other.
	seen, err = f.Under(ctx, old, func() error {
		return errors.Join(f.scale(ctx, 2*len(f.Nodes())), f.hasPod(ctx, node), f.scale(ctx, 3))
	})
	return node + ": " + seen, err
}

func (f *fixture) scale(ctx context.Context, replicas int) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := f.Client.AppsV1().Deployments(Namespace).Patch(ctx, "web", types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("scale the Deployment web: %w", err)
	}
	return f.AwaitDeployment(ctx, Namespace, "web")
}

func (f *fixture) hasPod(ctx context.Context, node string) error {
	pods, err := f.Pods(ctx, "app=web")
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Spec.NodeName == node {
			return nil
		}
	}
	return fmt.Errorf("none of %d pods is on %s", len(pods), node)
}

// leave removes a node as an operator does: drain, delete, switch off.
func (f *fixture) leave(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if !slices.Contains(f.Nodes(), node) {
		return nil
	}
	return errors.Join(f.drain(ctx, node), f.Kubectl(ctx, "delete", "node", node), f.RemoveNode(node))
}
