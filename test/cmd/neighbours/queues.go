package main

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

//go:embed policies.yaml
var policies string

// queues are network policy engines that the kernel asks about packets.
func queues() []neighbour {
	// The rules are those of the cluster's row, for the node's pods: kernels without nftables' queue refuse the engine's.
	// While it tries again, they may drop what waits in queues: removed hooks empty them (Linux, nf_queue_nf_hook_drop).
	const rules = `until grep -q '^ *98 ' /proc/net/netfilter/nfnetlink_queue; do sleep 0.1; done
while grep -q 'syncing nftables rules" error' /tmp/engine.log && ! grep -q 'Dropping out' /tmp/engine.log; do
	sleep 0.1
done
rules() {
	$1 -w -t mangle -N POLICIES
	$1 -w -t mangle -A POLICIES -m owner --uid-owner 0 -j RETURN
	$1 -w -t mangle -A POLICIES -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
	test "$1" = iptables || $1 -w -t mangle -A POLICIES -p ipv6-icmp -j RETURN
	$1 -w -t mangle -A POLICIES -s "$2" -j NFQUEUE --queue-num 98
	$1 -w -t mangle -A POLICIES -d "$2" -j NFQUEUE --queue-num 98
	$1 -w -t mangle -A POSTROUTING -j POLICIES
}
iptables -w -t mangle -S POLICIES >/dev/null 2>&1 || rules iptables 10.244.0.0/16
ip6tables -w -t mangle -S POLICIES >/dev/null 2>&1 || rules ip6tables fd00:244::/56
`
	const daemon = `. /run/engine
{ /kube-network-policies --hostname-override=node-1 --v=2 --nfqueue-id=98 --disable-nri >/tmp/engine.log 2>&1 & }
`
	// While the engine is away, what its rules hand to the queue is dropped, and what waits there when it ends.
	const end = `for t in iptables ip6tables; do
	$t -w -t mangle -D POSTROUTING -j POLICIES
	$t -w -t mangle -F POLICIES
	$t -w -t mangle -X POLICIES
done
until grep -q '^ *98 *[0-9]* *0 ' /proc/net/netfilter/nfnetlink_queue; do sleep 0.1; done
kill "$(pidof kube-network-policies)"
while pidof kube-network-policies; do sleep 0.1; done
`
	return []neighbour{{
		name: "policy-queue", program: "kube-network-policies", what: "a policy for the endpoint's pod, by rules with " +
			"iptables' target NFQUEUE", packages: []string{"iptables"},
		modules: map[string]string{"policies": "sigs.k8s.io/kube-network-policies"},
		tool:    "kube-network-policies", policies: policies,
		events: []event{{nameStart, daemon + rules}, {"restarts", end + daemon + rules}},
		stop:   event{"stops", end},
		// Alone, too, a restart loses the datagrams of a moment now and then.
		drops:  []string{"restarts"},
		record: judged,
	}}
}

// startPlane starts an API server that has objects and the pods that a policy may be about. How the neighbour reaches
// it is where programs in pods find it, but for the variables of the environment, which are in /run/engine.
func (w *world) startPlane(ctx context.Context, objects string) (err error) {
	if w.plane, err = controlplane.Start(ctx, controlplane.Config{NetNS: w.net.Node.Path()}); err != nil {
		return err
	}
	if err := w.plane.Apply(ctx, objects); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(w.plane.Client())
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	for _, name := range []string{"near", "pod"} {
		if err := publishPod(ctx, client, w.net.Pod(name)); err != nil {
			return fmt.Errorf("publish pod %s: %w", name, err)
		}
	}
	path, err := w.plane.ServiceAccountKubeconfig(ctx, "default", "engine")
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return fmt.Errorf("read the account of the engine: %w", err)
	}
	host, port, _ := strings.Cut(strings.TrimPrefix(config.Host, "https://"), ":")
	const folder = "/run/secrets/kubernetes.io/serviceaccount"
	_, err = w.system.run(ctx, fmt.Sprintf(`mkdir -p %[1]s
cat >%[1]s/ca.crt <<'END'
%[2]s
END
printf %%s '%[3]s' >%[1]s/token
echo 'export KUBERNETES_SERVICE_HOST=%[4]s KUBERNETES_SERVICE_PORT=%[5]s' >/run/engine
`, folder, config.CAData, config.BearerToken, host, port))
	return err
}

// publishPod makes the object of a pod that runs on the node.
func publishPod(ctx context.Context, client kubernetes.Interface, p *testnet.Pod) error {
	object := &corev1.Pod{ObjectMeta: meta.ObjectMeta{Name: p.Name, Labels: map[string]string{"app": p.Name}},
		Spec: corev1.PodSpec{NodeName: nodeName, ServiceAccountName: "engine",
			Containers: []corev1.Container{{Name: "server", Image: "server"}}}}
	object, err := client.CoreV1().Pods("default").Create(ctx, object, meta.CreateOptions{})
	if err != nil {
		return err
	}
	object.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: p.Addrs[0].String()}
	for _, a := range p.Addrs {
		object.Status.PodIPs = append(object.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	_, err = client.CoreV1().Pods("default").UpdateStatus(ctx, object, meta.UpdateOptions{})
	return err
}

// judged returns the packets that the engine was asked about, the verdicts that it gave, and the queue's counters.
func judged(ctx context.Context, w *world) (string, error) {
	return w.system.run(ctx, `
sed -nE 's/^\t\[([0-9]+)\] (.*):[0-9]+ ([^ ]+) (TCP|UDP)$/\1 \4 from \2 to \3/p
	s/.*Finished syncing packet" id=([0-9]+) .*verdict="([a-z]+)"/\1 verdict \2/p' /tmp/engine.log |
	awk '$2 == "verdict" { print $3 ":" packet[$1]; next } { id = $1; $1 = ""; packet[id] = $0 }'
echo "queue, waiting, dropped, dropped by the socket, packets: $(
	awk '{ print $1, $3, $6, $7, $8 }' /proc/net/netfilter/nfnetlink_queue)"
`)
}
