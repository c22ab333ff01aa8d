package workload

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"nftproxy/test/cmd/realcluster/cluster"
	"nftproxy/test/lib/controlplane"
)

//go:embed manifests/web.yaml
var webManifest string

// Namespace has the objects of manifests/web.yaml.
const Namespace = "smoke"

// timeout bounds the start and the end of the pods, and each smoke test: pods end after 15 s or more, one after the
// other.
const timeout = 20 * time.Minute

// Web is a web server of three pods, and a client pod on each node.
type Web struct {
	*cluster.Cluster
	kubectl string // path
	// Port and LocalPort are the node ports of the Services web and web-local.
	Port, LocalPort uint16
	// ClusterIPs are those of the Service web.
	ClusterIPs []netip.Addr
}

// Start makes the objects and waits until their pods are ready.
func Start(ctx context.Context, c *cluster.Cluster) (*Web, error) {
	w := &Web{Cluster: c}
	var err error
	if w.kubectl, err = controlplane.Tool(ctx, "kubectl"); err != nil {
		return nil, err
	}
	if w.kubectl, err = filepath.Abs(w.kubectl); err != nil {
		return nil, err
	}
	if err := w.make(ctx); err != nil {
		return nil, errors.Join(err, w.Remove())
	}
	return w, nil
}

func (w *Web) make(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := w.Plane.Apply(ctx, strings.ReplaceAll(webManifest, "NAMESPACE", Namespace)); err != nil {
		return err
	}
	web, err := w.Client.CoreV1().Services(Namespace).Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	local, err := w.Client.CoreV1().Services(Namespace).Get(ctx, "web-local", metav1.GetOptions{})
	if err != nil {
		return err
	}
	w.Port, w.LocalPort = uint16(web.Spec.Ports[0].NodePort), uint16(local.Spec.Ports[0].NodePort)
	for _, ip := range web.Spec.ClusterIPs {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return err
		}
		w.ClusterIPs = append(w.ClusterIPs, a)
	}
	return errors.Join(w.AwaitDeployment(ctx, Namespace, "web"), w.AwaitDaemonSet(ctx, Namespace, "client"))
}

// Remove deletes the objects and waits until they are gone.
func (w *Web) Remove() error {
	// Also after the end of the context of the tests.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	list := cache.NewListWatchFromClient(w.Client.CoreV1().RESTClient(), "namespaces", metav1.NamespaceAll,
		fields.OneTermEqualSelector("metadata.name", Namespace))
	if err := w.Client.CoreV1().Namespaces().Delete(ctx, Namespace, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete namespace %s: %w", Namespace, err)
	}
	gone := func(store cache.Store) (bool, error) { return len(store.List()) == 0, nil }
	_, err := watchtools.UntilWithSync(ctx, list, &corev1.Namespace{}, gone, func(e watch.Event) (bool, error) {
		return e.Type == watch.Deleted, nil
	})
	if err != nil {
		return fmt.Errorf("wait until namespace %s is gone: %w", Namespace, err)
	}
	return nil
}

// Clients are the addresses of the client pods by node, each family's first.
func (w *Web) Clients(ctx context.Context) (map[string][]netip.Addr, error) {
	pods, err := w.Pods(ctx, "app=client")
	if err != nil {
		return nil, err
	}
	clients := map[string][]netip.Addr{}
	for _, p := range pods {
		for _, ip := range p.Status.PodIPs {
			a, err := netip.ParseAddr(ip.IP)
			if err != nil {
				return nil, err
			}
			clients[p.Spec.NodeName] = append(clients[p.Spec.NodeName], a)
		}
	}
	return clients, nil
}

// Pods are the pods of the namespace with a label.
func (w *Web) Pods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	list, err := w.Client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return list.Items, nil
}

// Kubectl runs kubectl outside of the nodes, as an administrator does.
func (w *Web) Kubectl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, w.kubectl, append([]string{"--kubeconfig", w.Plane.AdminKubeconfig()}, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Outside.Run(cmd); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return nil
}
