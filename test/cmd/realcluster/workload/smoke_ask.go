package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pluginPath is of make build, from the folder where realcluster runs.
const pluginPath = "bin/kubectl-nftproxy"

// plugin runs kubectl nftproxy outside of the nodes, as an administrator does, and returns what it prints. wants are
// what that has to have, and code is the exit status.
func (f *fixture) plugin(ctx context.Context, code int, wants []string, args ...string) (stdout string, err error) {
	path, err := filepath.Abs(pluginPath)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"--kubeconfig", f.Plane.AdminKubeconfig()}, args...)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	exit := (*exec.ExitError)(nil)
	if err := f.Outside.Run(cmd); err != nil && !errors.As(err, &exit) {
		return "", err
	}
	var wrong []error
	if got := cmd.ProcessState.ExitCode(); got != code {
		wrong = append(wrong, fmt.Errorf("exit status %d, want %d", got, code))
	}
	for _, want := range wants {
		if !strings.Contains(out.String(), want) {
			wrong = append(wrong, fmt.Errorf("it does not say %q", want))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return "", fmt.Errorf("kubectl nftproxy %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

// askCluster: the plugin of kubectl tells of a cluster that is well, of mistakes in objects, of what happens to a
// pod's packet on two nodes, and of a node without a network.
func askCluster(ctx context.Context, f *fixture) (string, error) {
	nodes := f.Nodes()
	pods, err := f.Pods(ctx, "app=client")
	if err != nil {
		return "", err
	}
	if err := f.annotateWeb(ctx, `"client-hash"`); err != nil {
		return "", err
	}
	folder, err := os.MkdirTemp("", "sysdump")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	client := pods[0]
	all := fmt.Sprintf("%d/%d", len(nodes), len(nodes))
	for _, c := range []struct {
		args  string
		wants []string
	}{
		{"status --wait --timeout=2m", append([]string{"READY"}, nodes...)},
		{"explain svc/web:80 -n " + Namespace + " --from pod/" + client.Name, []string{
			"On the client's node " + client.Spec.NodeName, "of Service " + Namespace + "/web", "of the endpoint ",
			"is svc/" + Namespace + "/web", "is pod/" + Namespace + "/" + client.Name, "nftproxy.io/balance"}},
		{"explain svc/web:80 -n " + Namespace + " --from node/" + nodes[0], []string{"On the client's node " + nodes[0]}},
		{"get services web -n " + Namespace, []string{all}},
		{"get endpoints web -n " + Namespace + " -o wide", []string{"pod/web-", "ready", "active", all}},
		{"verify", append([]string{"RIGHT"}, nodes...)},
		{"logs --node " + nodes[0] + " --tail=-1", []string{"starting"}},
		{"sysdump --redact -f " + filepath.Join(folder, "dump.tar.gz"), []string{fmt.Sprintf("%d nodes", len(nodes))}},
	} {
		if _, err := f.plugin(ctx, 0, c.wants, strings.Fields(c.args)...); err != nil {
			return "", err
		}
	}
	text, err := f.plugin(ctx, 0, nil, "status", "-o", "json", "--node", nodes[0])
	if err != nil {
		return "", err
	}
	if err := troubledWeb(text); err != nil {
		return "", err
	}
	if err := f.annotateWeb(ctx, "null"); err != nil {
		return "", err
	}
	lost := nodes[len(nodes)-1]
	repair, err := f.cutOff(ctx, lost, false)
	if err != nil {
		return "", err
	}
	_, err = f.plugin(ctx, 1, []string{lost + ": ", "no-answer"}, "status")
	return fmt.Sprintf("%d nodes, and one of them without a network", len(nodes)), errors.Join(err, repair())
}

// askStreams: kubectl nftproxy trace shows the rules that a pod's connection meets on its node, and top the Service
// whose connections are refused there, while the pod makes them.
func askStreams(ctx context.Context, f *fixture) (seen string, err error) {
	first, end, err := otherService(ctx, &ailing{Cluster: f.Cluster})
	if end != nil {
		defer func() { err = errors.Join(err, end(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return "", err
	}
	pods, err := f.Pods(ctx, "app=client")
	if err != nil {
		return "", err
	}
	client := pods[0]
	address, err := netip.ParseAddr(client.Status.PodIP)
	if err != nil {
		return "", err
	}
	from := " --from pod/" + client.Name + " -n " + Namespace
	for _, c := range []struct {
		args  string
		to    string
		wants []string
	}{
		{"trace svc/web:80" + from + " -- --packets 2", f.ClusterIPs[0].String(), []string{"nftproxy", "dnat"}},
		{"top" + from, first.Spec.ClusterIP, []string{"trouble/first"}},
	} {
		shown := make(chan error, 1)
		go func() {
			_, err := f.plugin(ctx, 0, c.wants, strings.Fields(c.args)...)
			shown <- err
		}()
		// Connections go on until the command has ended: when it begins to listen cannot be seen from here.
		for done := false; !done; {
			select {
			case err = <-shown:
				done = true
			default:
				// Whether it is answered does not matter here.
				_, _ = f.Ask(ctx, address, "http", c.to, 80, 1)
			}
		}
		if err != nil {
			return "", err
		}
	}
	return "on " + client.Spec.NodeName, nil
}

// askConflict: the cluster's status names a Service that does not get its external IP, and who has it.
func askConflict(ctx context.Context, f *fixture) (seen string, err error) {
	_, end, err := otherService(ctx, &ailing{Cluster: f.Cluster})
	if end != nil {
		defer func() { err = errors.Join(err, end(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return "", err
	}
	if err := f.patchWeb(ctx, `{"spec":{"externalIPs":["198.51.100.77"]}}`); err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, f.patchWeb(context.WithoutCancel(ctx), `{"spec":{"externalIPs":null}}`))
	}()
	const says = "trouble/first: 198.51.100.77:80/tcp: it belongs to Service " + Namespace + "/web"
	err = again(ctx, func() error {
		_, err := f.plugin(ctx, 0, []string{"Problems of Services:", says}, "status")
		return err
	})
	return says, err
}

// askIll: kubectl nftproxy status names the node, and what is wrong with it, and is content again afterwards: a proxy
// that hangs, one that the API server does not answer, and a table that another nftproxy has left.
func askIll(ctx context.Context, f *fixture) (string, error) {
	nodes := f.Nodes()
	api, err := f.API()
	if err != nil {
		return "", err
	}
	a := &ailing{Cluster: f.Cluster, nodes: [2]string(nodes[:2])}
	ills := []struct{ script, end, says string }{
		{signalScript + " STOP", signalScript + " CONT", "nftproxy does not answer"},
		{fmt.Sprintf("nft 'table inet cut { chain cut { type filter hook output priority 0; ip daddr %s tcp dport %d reject "+
			"with tcp reset; }; }'", api.Addr(), api.Port()), "nft delete table inet cut", "the API server does not tell of"},
		{secondTableScript, "nft delete table ip second; nft delete table ip6 second",
			"table second is of an nftproxy that has ended"},
	}
	for _, ill := range ills {
		end, err := a.shell(ctx, 0, ill.script, ill.end)
		if err == nil {
			err = again(ctx, func() error {
				_, err := f.plugin(ctx, 1, []string{nodes[0] + ": ", ill.says}, "status")
				return err
			})
		}
		if err = errors.Join(err, end(context.WithoutCancel(ctx))); err != nil {
			return "", err
		}
		if _, err := f.plugin(ctx, 0, nil, "status", "--wait", "--timeout=2m"); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d ills named on %s", len(ills), nodes[0]), nil
}

// secondTableScript has another nftproxy make a table for a Service of IPv4, and end.
const secondTableScript = `set -e
for p in /proc/[0-9]*; do
  if [ "$(cat $p/comm 2>/dev/null)" = nftproxy ]; then nftproxy=$p/root/nftproxy; fi
done
cat > /tmp/second.yaml <<'END'
apiVersion: v1
kind: Service
metadata: {name: second, namespace: second}
spec: {clusterIP: 10.96.99.99, clusterIPs: [10.96.99.99], ipFamilies: [IPv4], ports: [{port: 80, protocol: TCP}]}
END
$nftproxy run --nftproxy-table=second --nftproxy-manifests=/tmp/second.yaml --hostname-override=second \
  --healthz-bind-address= --metrics-bind-address= --conntrack-max-per-core=0 >/tmp/second.log 2>&1 &
second=$!
until nft list table ip second >/dev/null 2>&1; do kill -0 $second; done
kill $second
wait $second || true`

// annotateWeb sets a mistaken value of an option of the Service web, or removes it by null.
func (f *fixture) annotateWeb(ctx context.Context, value string) error {
	return f.patchWeb(ctx, fmt.Sprintf(`{"metadata":{"annotations":{"nftproxy.io/balance":%s}}}`, value))
}

func (f *fixture) patchWeb(ctx context.Context, patch string) error {
	_, err := f.Client.CoreV1().Services(Namespace).Patch(ctx, "web", types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("change Service web: %w", err)
	}
	return nil
}

// troubledWeb says whether the status of a node names the Service web with its mistake.
func troubledWeb(status string) error {
	var list struct {
		Items []struct {
			Status struct{ Troubled []struct{ Name string } }
		}
	}
	if err := json.Unmarshal([]byte(status), &list); err != nil {
		return err
	}
	for _, i := range list.Items {
		for _, s := range i.Status.Troubled {
			if s.Name == "web" {
				return nil
			}
		}
	}
	return fmt.Errorf("status does not name the Service with a mistake: %s", status)
}
