package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testNamespace has the Services of the load.
const testNamespace = Namespace

// elsewhere is the overlay that an operator has to edit.
const elsewhere = "deploy/overlays/elsewhere"

// placeholder: the API server refuses the overlay as it is, with words that say what
// to do.
func placeholder(ctx context.Context, t *migration, _ *section) (string, error) {
	out, err := t.shell(ctx, "kubectl apply -k "+elsewhere)
	if err == nil || !strings.Contains(out, "PLACEHOLDER-set-the-address-of-your-API-server") {
		return "", fmt.Errorf("the overlay was not refused by its placeholder: %v: %s", err, out)
	}
	// What was not refused goes again. The DaemonSet is not there, so the command fails.
	_, _ = t.shell(ctx, "kubectl delete -k "+elsewhere)
	return "refused, and nothing left", t.nothingLeft(ctx)
}

// wrongServer is an address that swallows packets here, of a range for documentation.
const wrongServer = "192.0.2.1"

// wrongAddress: with an address that does not answer, the log and /readyz name it,
// and no pod is ready. kube-proxy goes on serving.
func wrongAddress(ctx context.Context, t *migration, _ *section) (_ string, err error) {
	if err := t.ip(ctx, "route", "add", "blackhole", wrongServer+"/32"); err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, t.ip(context.WithoutCancel(ctx), "route", "del", "blackhole", wrongServer+"/32"))
	}()
	dir, err := os.MkdirTemp("", "migrate-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	overlay, err := editedOverlay(dir, wrongServer)
	if err != nil {
		return "", err
	}
	if _, err := t.shell(ctx, "kubectl apply -k "+overlay); err != nil {
		return "", err
	}
	longest := time.Duration(0)
	pods, err := t.proxyPods(ctx)
	for _, p := range pods {
		took, warned := t.awaitWarning(ctx, p)
		longest = max(longest, took)
		err = errors.Join(err, warned, t.notReady(ctx, p.Spec.NodeName))
	}
	if err != nil {
		return "", err
	}
	if _, err := t.shell(ctx, "kubectl delete -k "+overlay); err != nil {
		return "", err
	}
	if err := t.awaitNoPods(ctx, "app.kubernetes.io/name="+nftproxy); err != nil {
		return "", err
	}
	return fmt.Sprintf("a warning %v after the start of a pod at the latest, and /readyz has the same words",
		longest.Round(100*time.Millisecond)), nil
}

func (t *migration) ip(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "ip", args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := t.Outside.Run(cmd); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return nil
}

// editedOverlay copies the folder deploy, and edits the overlay as the page for
// other clusters says: an address in place of ADDRESS, and the marks # away.
func editedOverlay(dir, address string) (string, error) {
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS("deploy")); err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, elsewhere)
	path := filepath.Join(overlay, "kustomization.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	before, patches, found := strings.Cut(string(text), "\n#patches:")
	if !found {
		return "", fmt.Errorf("%s has no patch to take the marks from", path)
	}
	patches = strings.ReplaceAll("patches:"+strings.ReplaceAll(patches, "\n#", "\n"), "ADDRESS", address)
	return overlay, os.WriteFile(path, []byte(before+"\n"+patches), 0o644)
}

// proxyPods waits until each node has a running pod of nftproxy, ready or not.
func (t *migration) proxyPods(ctx context.Context) ([]corev1.Pod, error) {
	var running []corev1.Pod
	err := again(ctx, func() error {
		pods, err := t.Client.CoreV1().Pods(kubeSystem).List(ctx,
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + nftproxy})
		if err != nil {
			return err
		}
		running = nil
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running = append(running, p)
			}
		}
		if len(running) != len(t.Nodes()) {
			return fmt.Errorf("%d of %d pods of nftproxy run", len(running), len(t.Nodes()))
		}
		return nil
	})
	return running, err
}

// awaitWarning follows a pod's log until a warning names the address, and says how
// long after the container's start that was.
func (t *migration) awaitWarning(ctx context.Context, p corev1.Pod) (time.Duration, error) {
	started := p.Status.ContainerStatuses[0].State.Running
	if started == nil {
		return 0, fmt.Errorf("%s: the container does not run", p.Name)
	}
	took := time.Duration(0)
	err := t.followLog(ctx, p, func(line string) bool {
		stamp, text, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		took = at.Sub(started.StartedAt.Time)
		return err == nil && strings.Contains(text, "WARN") && strings.Contains(text, wrongServer)
	})
	return took, err
}

// followLog follows a pod's log, whose lines begin with the time, until a line is as
// wanted.
func (t *migration) followLog(ctx context.Context, p corev1.Pod, wanted func(string) bool) (err error) {
	stream, err := t.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Follow: true,
		Timestamps: true}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("read the log of %s: %w", p.Name, err)
	}
	defer func() {
		if closed := stream.Close(); err == nil && !errors.Is(closed, io.EOF) {
			err = closed
		}
	}()
	var all strings.Builder
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		if wanted(lines.Text()) {
			return nil
		}
		fmt.Fprintln(&all, lines.Text())
	}
	return errors.Join(fmt.Errorf("the log of %s ended without the line:\n%s", p.Name, all.String()), lines.Err())
}

// notReady checks that the probe server of a node says what is wrong.
func (t *migration) notReady(ctx context.Context, node string) error {
	return again(ctx, func() error {
		to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), probePort)
		_, err := t.GetFrom(ctx, t.NetworkOf(node), to, "/readyz")
		if err == nil {
			return fmt.Errorf("/readyz of %s says that nftproxy is ready", node)
		}
		if !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), wrongServer) {
			return fmt.Errorf("/readyz of %s does not name %s: %w", node, wrongServer, err)
		}
		return nil
	})
}

// changeConfiguration: a change of kube-proxy's ConfigMap reaches nftproxy's running
// pods, none of which starts again.
func changeConfiguration(ctx context.Context, t *migration, _ *section) (string, error) {
	before, err := t.proxyPods(ctx)
	if err != nil {
		return "", err
	}
	began := time.Now()
	edit := func(from, to string) error {
		_, err := t.shell(ctx, fmt.Sprintf("kubectl -n kube-system get configmap kube-proxy -o yaml | sed 's/%s/%s/' | "+
			"kubectl replace -f -", from, to))
		return err
	}
	if err := edit("      masqueradeAll: false", "      masqueradeAll: true"); err != nil {
		return "", err
	}
	for _, p := range before {
		if err := t.followLog(ctx, p, func(line string) bool {
			return strings.Contains(line, "the configuration file has changed")
		}); err != nil {
			return "", err
		}
	}
	took := time.Since(began)
	after, err := t.proxyPods(ctx)
	if err != nil {
		return "", err
	}
	for _, p := range after {
		if p.Status.ContainerStatuses[0].RestartCount > 0 {
			return "", fmt.Errorf("%s started again", p.Name)
		}
	}
	return fmt.Sprintf("all pods had it after %v, none started again", took.Round(time.Second)),
		edit("      masqueradeAll: true", "      masqueradeAll: false")
}
