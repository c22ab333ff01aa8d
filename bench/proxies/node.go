package proxies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

// Node is a node for one proxy: a network namespace of its own, with a link to the
// control plane.
type Node struct {
	*testnet.Topology
	Name       string
	kubeconfig string
}

// NewNode makes a node and its Node object, as a kubelet would.
func NewNode(ctx context.Context, plane *controlplane.Plane) (*Node, error) {
	topology, err := testnet.NewTopology(testnet.Config{})
	if err != nil {
		return nil, err
	}
	n := &Node{Topology: topology, kubeconfig: plane.Cluster.AdminKubeconfig()}
	if err := n.register(ctx, plane); err != nil {
		return nil, errors.Join(err, topology.Close())
	}
	return n, nil
}

// StartPlane starts the control plane that the proxies learn from.
func StartPlane(ctx context.Context, log io.Writer) (*controlplane.Plane, error) {
	plane, err := controlplane.StartInNamespace(ctx, controlplane.Config{
		ListenAddr: netip.MustParseAddr("172.30.0.1"),
		// This controller makes ServiceCIDRs ready, and proxies look at ready ones only.
		// Other controllers would react to every change.
		Controllers:   []string{"service-cidr-controller"},
		NodePortRange: controlplane.NodePortRange,
		Log:           log,
	})
	if err != nil {
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	return plane, nil
}

func (n *Node) register(ctx context.Context, plane *controlplane.Plane) error {
	if err := plane.Connect(n.Node); err != nil {
		return err
	}
	n.Name = fmt.Sprintf("bench-%d", plane.Nodes())
	nodes := plane.Client.CoreV1().Nodes()
	object, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the Node: %w", err)
	}
	for _, a := range n.NodeAddrs {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP,
			Address: a.String()})
	}
	if _, err = nodes.UpdateStatus(ctx, object, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("give the Node its addresses: %w", err)
	}
	return nil
}

func (n *Node) clusterCIDR() string {
	return fmt.Sprintf("%s,%s", n.ClusterCIDRs[0], n.ClusterCIDRs[1])
}
