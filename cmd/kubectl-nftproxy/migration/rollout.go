package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// stepRestart is after a change of kube-proxy's DaemonSet, whose controller replaces all pods for it.
const stepRestart = "restart"

// changeKubeProxy changes kube-proxy's DaemonSet, and waits for the pods of the new template. A run that was killed
// in between changes nothing the next time, and waits all the same.
func (m *migration) changeKubeProxy(ctx context.Context, change func(*appsv1.DaemonSet) *appsv1.DaemonSet,
	h hold) error {
	if err := m.changeSet(ctx, kubeSystem, KubeProxy, change, h); err != nil {
		return err
	}
	return m.awaitRollout(ctx, kubeSystem, KubeProxy)
}

// awaitRollout waits until a DaemonSet has replaced its pods. There is patience for each pod anew.
func (m *migration) awaitRollout(ctx context.Context, namespace, name string) error {
	const periods = 5 // A look at a rollout lists nodes and pods.
	var stopped *StoppedError
	replaced, since, told := int32(-1), time.Now(), false
	return wait.PollUntilContextCancel(ctx, periods*m.Period, true, func(ctx context.Context) (bool, error) {
		s, err := m.of.Client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			if now := s.Status.UpdatedNumberScheduled; now != replaced {
				replaced, since = now, time.Now()
			}
			stopped, err = m.rollsOut(ctx, s)
		}
		if err != nil {
			stopped = &StoppedError{"DaemonSet " + name, stepRestart, fmt.Errorf("look at its pods: %w", err)}
		}
		switch {
		case stopped == nil:
			return true, nil
		case time.Since(since) > m.Patience:
			return true, stopped
		case !told:
			told = true
			m.say("DaemonSet "+name, stepRestart, "it has changed, so its pods restart, one node after the other")
		}
		return false, nil
	})
}

// rollsOut says what the rollout of a DaemonSet waits for; nil if it has ended. Nodes that are not well are not waited
// for. They may hold up the rollout on the others, where the pods from before serve.
func (m *migration) rollsOut(ctx context.Context, s *appsv1.DaemonSet) (*StoppedError, error) {
	waits := func(at string, why error) (*StoppedError, error) { return &StoppedError{at, stepRestart, why}, nil }
	if s.Status.ObservedGeneration < s.Generation {
		return waits("DaemonSet "+s.Name, errors.New("its controller has not seen the change"))
	}
	old := s.Status.DesiredNumberScheduled - s.Status.UpdatedNumberScheduled
	if s.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		old = 0
	}
	if old <= 0 && s.Status.NumberUnavailable == 0 {
		return nil, nil
	}
	nodes, err := m.of.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	pods, err := m.podsByNode(ctx, s.Namespace, metav1.FormatLabelSelector(s.Spec.Selector))
	if err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		n := &node{Node: cluster.Node{Name: nodes.Items[i].Name, Object: &nodes.Items[i]}}
		if !cluster.IsFor(s, n.Object) {
			continue
		}
		if n.well() != nil {
			old = 0
			continue
		}
		switch pod := cluster.PodOf(pods[n.Name], []appsv1.DaemonSet{*s}); {
		case pod == nil:
			return waits(n.Name, fmt.Errorf("there is no pod of %s", s.Name))
		case pod.DeletionTimestamp != nil:
			return waits(n.Name, fmt.Errorf("the pod %s ends", pod.Name))
		case podReady(pod) != nil:
			return waits(n.Name, podReady(pod))
		}
	}
	if old > 0 {
		return waits("DaemonSet "+s.Name, fmt.Errorf("%d of %d pods are still to be replaced", old,
			s.Status.DesiredNumberScheduled))
	}
	return nil, nil
}
