package smoke

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"nftproxy/test/cluster"
	"nftproxy/test/realcluster/bringup"
)

//go:embed manifests/web.yaml
var webManifest string

// namespace has the objects of manifests/web.yaml.
const namespace = "smoke"

// fixture is what all tests use.
type fixture struct {
	*bringup.Cluster
	kubectl string // path
	// ports are the node ports of web and of web-local.
	port, localPort uint16
	clusterIPs      []netip.Addr // of web
}

// newFixture makes the objects and waits until their pods are ready.
func newFixture(ctx context.Context, c *bringup.Cluster) (*fixture, error) {
	f := &fixture{Cluster: c}
	var err error
	if f.kubectl, err = cluster.Tool(ctx, "kubectl"); err != nil {
		return nil, err
	}
	if f.kubectl, err = filepath.Abs(f.kubectl); err != nil {
		return nil, err
	}
	if err := f.make(ctx); err != nil {
		return nil, errors.Join(err, f.remove())
	}
	return f, nil
}

func (f *fixture) make(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := f.Plane.Apply(ctx, strings.ReplaceAll(webManifest, "NAMESPACE", namespace)); err != nil {
		return err
	}
	web, err := f.Client.CoreV1().Services(namespace).Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	local, err := f.Client.CoreV1().Services(namespace).Get(ctx, "web-local", metav1.GetOptions{})
	if err != nil {
		return err
	}
	f.port, f.localPort = uint16(web.Spec.Ports[0].NodePort), uint16(local.Spec.Ports[0].NodePort)
	for _, ip := range web.Spec.ClusterIPs {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return err
		}
		f.clusterIPs = append(f.clusterIPs, a)
	}
	return errors.Join(f.AwaitDeployment(ctx, namespace, "web"), f.AwaitDaemonSet(ctx, namespace, "client"))
}

// remove deletes the objects and waits until they are gone.
func (f *fixture) remove() error {
	// Also after the end of the context of the tests.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	list := cache.NewListWatchFromClient(f.Client.CoreV1().RESTClient(), "namespaces", metav1.NamespaceAll,
		fields.OneTermEqualSelector("metadata.name", namespace))
	if err := f.Client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete namespace %s: %w", namespace, err)
	}
	gone := func(store cache.Store) (bool, error) { return len(store.List()) == 0, nil }
	_, err := watchtools.UntilWithSync(ctx, list, &corev1.Namespace{}, gone, func(e watch.Event) (bool, error) {
		return e.Type == watch.Deleted, nil
	})
	if err != nil {
		return fmt.Errorf("wait until namespace %s is gone: %w", namespace, err)
	}
	return nil
}

// clients are the addresses of the client pods by node, each family's first.
func (f *fixture) clients(ctx context.Context) (map[string][]netip.Addr, error) {
	pods, err := f.pods(ctx, "app=client")
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

func (f *fixture) pods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	list, err := f.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return list.Items, nil
}

// run runs kubectl outside of the nodes, as an administrator does.
func (f *fixture) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, f.kubectl, append([]string{"--kubeconfig", f.Plane.AdminKubeconfig()}, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := f.Outside.Run(cmd); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return nil
}
