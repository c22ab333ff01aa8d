package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addPod adds a pod of a tenant.
func (f *fakeCluster) addPod(namespace, name, node, address string) {
	f.pods = append(f.pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}},
	})
}

// TestExplain: the client's node is asked, then the node of an endpoint on another one, as the endpoint sees the
// packet; names are translated both ways.
func TestExplain(t *testing.T) {
	f := shop()
	f.addPod("shop", "client", "node-2", "10.244.2.9")
	f.addPod("shop", "cart-a", "node-1", "10.244.1.5")
	f.addPod("shop", "cart-b", "node-2", "10.244.2.5")
	var ran []string
	f.run = func(node string, args []string) (string, int) {
		ran = append(ran, node+": "+strings.Join(args, " "))
		if node == "node-2" {
			return `{"outcome":"endpoint","summary":"it goes to one of 2 endpoints","service":"shop/cart","port":"http",
				"packet":{"protocol":"tcp","source":"10.244.2.9","from":"a pod","destination":"10.96.0.20:80"},
				"endpoints":[{"address":"10.244.1.5:8080","chance":0.5,"masqueraded":true},
				{"address":"10.244.2.5:8080","chance":0.5}],"causes":["why"],"remedies":["do this"]}`, 0
		}
		return `{"outcome":"untouched","summary":"nftproxy's rules leave it alone","packet":{"protocol":"tcp",
			"source":"192.168.0.2","from":"a client outside","destination":"10.244.1.5:8080"},
			"others":[{"says":"chain forward of firewalld may drop it"}]}`, 3
	}
	stdout, stderr, code := f.runPlugin(t, "explain", "svc/cart", "-n", "shop", "--from", "pod/client")
	if want := "node-2: explain -o json --like=1 --from 10.244.2.9 10.96.0.20:80/tcp\n" +
		"node-1: explain -o json --from 192.168.0.2 10.244.1.5:8080/tcp"; strings.Join(ran, "\n") != want {
		t.Errorf("ran\n%s\nwant\n%s", strings.Join(ran, "\n"), want)
	}
	for _, want := range []string{
		"On the client's node node-2, by its kernel:\n  tcp from 10.244.2.9 (a pod) to 10.96.0.20:80, of Service " +
			"shop/cart:http: it goes to one of 2 endpoints.\n",
		"  Why:\n    why\n", "  What to do:\n    do this\n",
		"On node node-1 of the endpoint 10.244.1.5:8080, by its kernel:\n",
		"    chain forward of firewalld may drop it\n",
		"By the API server:\n  10.244.1.5 is pod/shop/cart-a on node node-1\n  10.244.2.5 is pod/shop/cart-b on node node-2" +
			"\n  10.244.2.9 is pod/shop/client on node node-2\n  10.96.0.20 is svc/shop/cart\n  192.168.0.2 is node/node-2\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the output lacks\n%s", want)
		}
	}
	if t.Failed() || code != 0 {
		t.Errorf("exit status %d: %s\n%s", code, stderr, stdout)
	}
}

// TestExplainQuestions: what each way of asking runs on which node, and what is no question.
func TestExplainQuestions(t *testing.T) {
	for line, want := range map[string]string{
		"svc/cart:80 --from node/node-3":             "node-3: --from node 10.96.0.20:80/tcp",
		"svc/cart:http --from outside --node node-3": "node-3: --from 203.0.113.1 10.96.0.20:80/tcp",
		"192.168.0.2:30080 --from outside":           "node-2: --from 203.0.113.1 192.168.0.2:30080/tcp",
		"svc/cart:80/udp":                            `service shop/cart has 0 ports "80"`,
		"svc/cart --from node/node-1 --node node-2":  "--node: the node of node/node-1 is known",
		"svc/cart --from node/":                      `--from "node/": want`,
		"svc/cart --follow=-1":                       "--follow: -1 is negative",
		"10.96.0.10:53/udp":                          "node-1: 10.96.0.10:53/udp",
		"[fd00::10]:53/udp --from outside":           "node-1: --from 2001:db8:ffff::1 [fd00::10]:53/udp",
		"pod/client:8080/sctp --from node/node-1":    "node-1: --from node 10.244.2.9:8080/sctp",
		"svc/cart:81":                                `service shop/cart has 0 ports "81": want one of http 80/tcp`,
		"svc/headless":                               "service shop/headless has no cluster IP for the client",
		"svc/nothing":                                "services nothing not found",
		"10.96.0.10":                                 `"10.96.0.10": want svc/NAME[:PORT]`,
		"10.96.0.10:0":                               `"10.96.0.10:0": want`,
		"pod/client":                                 "pod/client: want a port",
		"svc/cart --from client":                     `--from "client": want`,
		"svc/cart --from node/nowhere":               `nftproxy's DaemonSet is not for a node "nowhere"`,
		"svc/cart -o xml":                            `--output: "xml"`,
		"[fd00::10]:53 --from pod/client":            "pod/client has no address of the family of fd00::10",
	} {
		f := shop()
		f.addPod("shop", "client", "node-2", "10.244.2.9")
		ran := ""
		f.run = func(node string, args []string) (string, int) {
			ran = node + ": " + strings.TrimPrefix(strings.Join(args, " "), "explain -o json --like=1 ")
			return `{"outcome":"refused"}`, 1
		}
		_, stderr, code := f.runPlugin(t, append([]string{"explain", "-n", "shop"}, strings.Fields(line)...)...)
		if ran != want && !strings.Contains(stderr, want) || code == 0 {
			t.Errorf("explain %s: ran %q, exit status %d, %s; want %q", line, ran, code, stderr, want)
		}
	}
}
