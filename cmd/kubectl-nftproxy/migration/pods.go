package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// podLabel has the pods of this package, and nobody else's.
const (
	podLabelKey   = "app.kubernetes.io/name"
	podLabelValue = "nftproxy-migrate"
	podLabel      = podLabelKey + "=" + podLabelValue
)

// How long a pod may run if nobody removes it, how long its removal may take, and how much of its log is read.
const (
	podDeadline  = 10 * time.Minute
	removalTime  = 15 * time.Second
	endTime      = 5 * time.Second
	mostLogBytes = 1 << 20
)

// command is a pod that runs a command of nftproxy on a node once, in its network, as deploy/cleanup does: with
// nftproxy's image, as root with NET_ADMIN.
type command struct{ spec corev1.PodSpec }

func (m *migration) command(n *node, args ...string) command {
	from := &n.set.Spec.Template.Spec
	container := corev1.Container{
		Name: "nftproxy", Args: args,
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(int64(0)), RunAsNonRoot: new(false), AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"},
				Add: []corev1.Capability{"NET_ADMIN"}},
		},
	}
	for _, c := range from.Containers {
		if c.Name == cluster.Container {
			container.Image, container.ImagePullPolicy = c.Image, c.ImagePullPolicy
		}
	}
	security := &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	if from.SecurityContext != nil {
		security.SELinuxOptions = from.SecurityContext.SELinuxOptions
	}
	return command{corev1.PodSpec{
		NodeName: n.Name, HostNetwork: true, DNSPolicy: corev1.DNSDefault, RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{container}, ImagePullSecrets: from.ImagePullSecrets,
		Tolerations: from.Tolerations, PriorityClassName: from.PriorityClassName, SecurityContext: security,
		// The pod asks no API server.
		AutomountServiceAccountToken:  new(false),
		ActiveDeadlineSeconds:         new(int64(podDeadline.Seconds())),
		TerminationGracePeriodSeconds: new(int64(endTime.Seconds())),
	}}
}

// withAllRights is the command with the rights to try the kernel's features in a network namespace of its own, and the
// node's processes, of which Felix' environment tells what its FelixConfigurations do not.
func (c command) withAllRights() command {
	c.spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(0)), RunAsNonRoot: new(false),
		Privileged: new(true)}
	c.spec.HostPID = true
	c.spec.PriorityClassName = "" // A check is not to take the place of anybody's pod.
	return c
}

// onHost is the command with the node's processes and the lock of iptables-legacy.
func (c command) onHost() command {
	const lock, path = "xtables-lock", "/run/xtables.lock"
	c.spec.HostPID = true
	c.spec.Volumes = []corev1.Volume{{Name: lock, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
		Path: path, Type: new(corev1.HostPathFileOrCreate)}}}}
	c.spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: lock, MountPath: path}}
	return c
}

// makePod makes the pod of a command. Once it is asked for, the end of ctx does not cut the request off: the API server
// might make the pod after it has been removed.
func (m *migration) makePod(ctx context.Context, name string, c command) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removalTime)
	defer cancel()
	_, err := m.of.Client.CoreV1().Pods(m.of.Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{podLabelKey: podLabelValue}}, Spec: c.spec,
	}, metav1.CreateOptions{FieldManager: fieldManager})
	return err
}

// runOn runs a command on a node, and returns what it printed and its exit status. Its pod is removed.
func (m *migration) runOn(ctx context.Context, n *node, c command) (out string, exit int, err error) {
	pods := m.of.Client.CoreV1().Pods(m.of.Namespace)
	// The name is known even if the answer to the creation gets lost.
	name := podLabelValue + "-" + rand.String(10)
	defer func() {
		// The pod goes even if the context has ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removalTime)
		defer cancel()
		if removal := pods.Delete(ctx, name, metav1.DeleteOptions{}); removal != nil && !apierrors.IsNotFound(removal) {
			err = errors.Join(err, fmt.Errorf("remove the pod %s: %w", name, removal))
		}
	}()
	if err := m.makePod(ctx, name, c); err != nil {
		return "", 0, fmt.Errorf("make a pod for nftproxy %s: %w", c.spec.Containers[0].Args[0], err)
	}
	var ended *corev1.ContainerStateTerminated
	err = m.await(ctx, n, func(ctx context.Context) error {
		now, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("the pod %s was removed by somebody else", name)
		}
		if err != nil {
			return again(fmt.Errorf("read the pod %s: %w", name, err))
		}
		for _, s := range now.Status.ContainerStatuses {
			ended = s.State.Terminated
		}
		switch {
		case now.DeletionTimestamp != nil:
			return fmt.Errorf("the pod %s was removed by somebody else", name)
		case ended != nil:
			return nil
		case now.Status.Phase == corev1.PodFailed:
			return podReady(now)
		default:
			return again(fmt.Errorf("nftproxy %s does not end, or did not begin: %w", c.spec.Containers[0].Args[0], waits(now)))
		}
	})
	if err != nil {
		return "", 0, err
	}
	out, err = m.logOf(ctx, name)
	return out, int(ended.ExitCode), err
}

// logOf reads what a pod has printed.
func (m *migration) logOf(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, m.Patience, fmt.Errorf("no answer within %s", m.Patience))
	defer cancel()
	read := func() (string, error) {
		log, err := m.of.Client.CoreV1().Pods(m.of.Namespace).GetLogs(name,
			&corev1.PodLogOptions{LimitBytes: new(int64(mostLogBytes))}).Stream(ctx)
		if err != nil {
			return "", err
		}
		defer log.Close()
		text, err := io.ReadAll(io.LimitReader(log, mostLogBytes))
		return string(text), err
	}
	text, err := read()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("read the log of the pod %s: %w", name, err)
	}
	return text, nil
}

// waits says what a pod is waiting for; its phase, if it runs.
func waits(p *corev1.Pod) error {
	if err := podReady(p); err != nil {
		return err
	}
	return fmt.Errorf("the pod %s is %s", p.Name, p.Status.Phase)
}

// removeLeftPods removes the pods that a killed run left. Those on a node that is dead stay there, and hold up nobody.
func (m *migration) removeLeftPods(ctx context.Context) error {
	left, err := m.leftPods(ctx)
	if err != nil {
		return err
	}
	for i := range left {
		p := &left[i]
		m.leftOver = append(m.leftOver, p.Name)
		if p.DeletionTimestamp != nil {
			m.say(p.Spec.NodeName, "pod of an earlier migration", m.doesNotEnd(p))
			continue
		}
		err := m.of.Client.CoreV1().Pods(m.of.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove the pod %s of an earlier migration: %w", p.Name, err)
		}
	}
	return nil
}

// awaitLeftPods waits until the pods that a killed run left on these nodes have ended: they may change rules.
func (m *migration) awaitLeftPods(ctx context.Context, nodes []*node) error {
	if len(m.leftOver) == 0 {
		return nil
	}
	var last *corev1.Pod
	err := wait.PollUntilContextTimeout(ctx, m.Period, m.Patience, true, func(ctx context.Context) (bool, error) {
		left, err := m.leftPods(ctx)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(left, func(p corev1.Pod) bool {
			return slices.Contains(m.leftOver, p.Name) &&
				slices.ContainsFunc(nodes, func(n *node) bool { return n.Name == p.Spec.NodeName })
		})
		if i >= 0 {
			last = &left[i]
		}
		return i < 0, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil && last != nil {
		return &StoppedError{Node: last.Spec.NodeName, Step: "wait for a pod of an earlier migration",
			Err: fmt.Errorf("%s (after %s)", m.doesNotEnd(last), m.Patience)}
	}
	return err
}

func (m *migration) leftPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := m.of.Client.CoreV1().Pods(m.of.Namespace).List(ctx, metav1.ListOptions{LabelSelector: podLabel})
	if err != nil {
		return nil, fmt.Errorf("look for pods of an earlier migration: %w", err)
	}
	return list.Items, nil
}

// doesNotEnd says what to do about a pod that does not end.
func (m *migration) doesNotEnd(p *corev1.Pod) string {
	return fmt.Sprintf("%s does not end; if the node is down for good, kubectl --namespace %s delete pod %s --force",
		p.Name, m.of.Namespace, p.Name)
}
