package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addOwned adds a pod that something made.
func (f *fakeCluster) addOwned(namespace, name, ip, ownerKind, ownerName string) {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}}
	if ownerKind != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: ownerKind, Name: ownerName, Controller: new(true)}}
	}
	f.pods = append(f.pods, p)
}

// talkingShop has pods of a Deployment, of a StatefulSet and of a CronJob.
func talkingShop() *fakeCluster {
	f := newFakeCluster("node-1", "node-2", "node-3", "node-4")
	f.addOwned("shop", "web-5f-a", "10.244.1.1", "ReplicaSet", "web-5f")
	f.addOwned("shop", "web-5f-b", "10.244.2.1", "ReplicaSet", "web-5f")
	f.addOwned("shop", "cart-0", "10.244.2.2", "StatefulSet", "cart")
	f.addOwned("other", "report-1-x", "10.244.1.3", "Job", "report-1")
	f.addOwned("other", "ended", "10.244.1.1", "", "")
	f.pods[len(f.pods)-1].Status.Phase = corev1.PodSucceeded
	f.owned = map[string]metav1.OwnerReference{
		"replicasets/shop/web-5f": {Kind: "Deployment", Name: "web", Controller: new(true)},
		"jobs/other/report-1":     {Kind: "CronJob", Name: "report", Controller: new(true)},
	}
	return f
}

// flowText is a flow as nodes print it. began is how many seconds before the answer.
func flowText(id, began int, client, service, endpoint, result string, answer float64) string {
	text := fmt.Sprintf(`{"seq":%d,"id":%d,"begin":%q,"protocol":"TCP","client":"%s:40000","service":%q,"port":"http",`+
		`"way":"cluster-ip","address":"10.96.0.20:80","endpoint":%q,"result":%q,"cause":"","answerSeconds":null,`+
		`"ended":true,"seconds":2,"packetsFrom":3,"bytesFrom":300,"packetsTo":4,`+
		`"bytesTo":4000,"weight":16,"later":"a new field"}`, id, id,
		answeredAt().Add(-time.Duration(began)*time.Second).Format(time.RFC3339), client, service, endpoint, result)
	if answer > 0 {
		text = strings.Replace(text, `"answerSeconds":null`, fmt.Sprintf(`"answerSeconds":%v`, answer), 1)
	}
	return text
}

func answeredAt() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func flowsText(node string, list ...string) string {
	return fmt.Sprintf(`{"node":%q,"time":%q,"since":%q,"flows":[%s]}`, node, answeredAt().Format(time.RFC3339),
		answeredAt().Add(-time.Hour).Format(time.RFC3339), strings.Join(list, ","))
}

// talk has two nodes with flows, one without them, and one with an nftproxy that is too old.
func talk(node string, _ []string) (string, int) {
	switch node {
	case "node-1":
		return flowsText(node, flowText(1, 30, "10.244.1.1", "shop/cart", "10.244.2.2:8080", "answered", 0.0004),
			flowText(2, 20, "10.244.1.3", "shop/cart", "10.244.2.2:8080", "refused", 0.0002),
			flowText(3, 10, "192.168.0.1", "shop/cart", "", "dropped", 0)), 0
	case "node-2":
		return flowsText(node, flowText(1, 25, "10.244.2.1", "shop/cart", "10.244.2.2:8080", "answered", 0.0005),
			flowText(2, 5, "203.0.113.7", "shop/cart", "10.244.2.2:8080", "answered", 0.03)), 0
	case "node-3":
		return stderrOnly + "nftproxy follows no connections on this node: start it with --nftproxy-flows=1/256", 2
	}
	return stderrOnly + `unknown command "flows" for "nftproxy"`, 2
}

// TestFlows: the flows of all nodes are in one order, with names of pods and nodes; nodes that tell of none are rows.
func TestFlows(t *testing.T) {
	f := talkingShop()
	f.run = func(node string, args []string) (string, int) {
		if got := strings.Join(args, " "); got != "flows -o json --last 100 -n shop cart" {
			t.Errorf("node %s runs %q", node, got)
		}
		return talk(node, args)
	}
	stdout, stderr, code := f.runPlugin(t, "flows", "-n", "shop", "--service", "cart", "-o", "wide")
	rows := strings.Split(strings.TrimSpace(squeezed(stdout)), "\n")
	want := []string{
		"NODE CLIENT SERVICE ENDPOINT RESULT ANSWER LASTED FROM TO WAY WEIGHT CLIENT-WORKLOAD CLIENT-ADDRESS ADDRESS " +
			"ENDPOINT-WORKLOAD ENDPOINT-ADDRESS",
		"node-1 pod/shop/web-5f-a shop/cart:http/tcp pod/shop/cart-0 answered 400us 2s 300 4000 cluster-ip 16 " +
			"deployment/shop/web 10.244.1.1:40000 10.96.0.20:80 statefulset/shop/cart 10.244.2.2:8080",
		"node-2 pod/shop/web-5f-b shop/cart:http/tcp pod/shop/cart-0 answered 500us 2s 300 4000 cluster-ip 16 " +
			"deployment/shop/web 10.244.2.1:40000 10.96.0.20:80 statefulset/shop/cart 10.244.2.2:8080",
		"node-1 pod/other/report-1-x shop/cart:http/tcp pod/shop/cart-0 refused 200us 2s 300 4000 cluster-ip 16 " +
			"cronjob/other/report 10.244.1.3:40000 10.96.0.20:80 statefulset/shop/cart 10.244.2.2:8080",
		"node-1 node/node-1 shop/cart:http/tcp - dropped - 2s 300 4000 cluster-ip 16 node/node-1 192.168.0.1:40000 " +
			"10.96.0.20:80 - -",
		"node-2 203.0.113.7:40000 shop/cart:http/tcp pod/shop/cart-0 answered 30ms 2s 300 4000 cluster-ip 16 - " +
			"203.0.113.7:40000 10.96.0.20:80 statefulset/shop/cart 10.244.2.2:8080",
		"node-3 - - - off - - - - - - - - - - -",
		"node-4 - - - too-old - - - - - - - - - - -",
	}
	for i, row := range rows {
		if _, rest, _ := strings.Cut(row, " "); i >= len(want) || rest != want[i] {
			t.Errorf("row %d: %q", i, row)
		}
	}
	for _, says := range []string{"node-3: nftproxy follows no connections",
		"node-4: nftproxy is older than this plugin"} {
		if !strings.Contains(stderr, says) {
			t.Errorf("it does not say %q: %s", says, stderr)
		}
	}
	if code != 1 || len(rows) != len(want) {
		t.Errorf("exit status %d with %d rows", code, len(rows))
	}
}

// TestFlowsJSON: programs get the node's fields and the names.
func TestFlowsJSON(t *testing.T) {
	f := talkingShop()
	f.run = talk
	stdout, _, _ := f.runPlugin(t, "flows", "-A", "--node", "node-2,node-3", "--last", "1", "-o", "json")
	var list struct {
		Items []struct {
			Kind, Node, State, Client, ClientName, EndpointWorkload string
			AnswerSeconds                                           float64
			Metadata                                                struct{ Namespace, Name string }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list.Items) != 2 {
		t.Fatalf("%v: %s", err, stdout)
	}
	if i := list.Items[0]; i.Kind != "Flow" || i.Metadata.Name != "node-2-2" || i.Metadata.Namespace != "shop" ||
		i.Client != "203.0.113.7:40000" || i.EndpointWorkload != "statefulset/shop/cart" || i.AnswerSeconds != 0.03 {
		t.Errorf("a flow is %+v", i)
	}
	if i := list.Items[1]; i.Kind != "FlowsNode" || i.State != "off" || i.Node != "node-3" {
		t.Errorf("a node without flows is %+v", i)
	}
}

// TestFlowsFrom: nodes choose by addresses, and the plugin by workloads, of which it has the addresses.
func TestFlowsFrom(t *testing.T) {
	f := talkingShop()
	var mu sync.Mutex
	var ran string
	f.run = func(node string, args []string) (string, int) {
		mu.Lock()
		defer mu.Unlock()
		ran = strings.Join(args, " ")
		return talk(node, args)
	}
	// Nodes compress what may be all of their flows.
	for _, c := range []struct{ line, ran, clients string }{
		{"--from 10.244.1.0/24", "flows -o json --last 100 -n shop --from 10.244.1.0/24", ""},
		{"--from deploy/web", "flows -o json --last 0 -n shop --gzip", "pod/shop/web-5f-a pod/shop/web-5f-b"},
		{"--from pod/web-5f-b --result answered", "flows -o json --last 0 -n shop --result answered --gzip",
			"pod/shop/web-5f-b"},
		{"--from node/node-1", "flows -o json --last 0 -n shop --gzip", "node/node-1"},
		{"--to sts/cart --from deployments/web", "flows -o json --last 0 -n shop --gzip",
			"pod/shop/web-5f-a pod/shop/web-5f-b"},
	} {
		stdout, stderr, code := f.runPlugin(t, append(strings.Fields("flows -n shop --node node-1,node-2 --no-headers"),
			strings.Fields(c.line)...)...)
		var clients []string
		for _, row := range strings.Split(strings.TrimSpace(squeezed(stdout)), "\n") {
			clients = append(clients, strings.Fields(row)[2])
		}
		if got := strings.Join(clients, " "); code != 0 || ran != c.ran || c.clients != "" && got != c.clients {
			t.Errorf("%s: exit status %d (%s), nodes run %q, and clients are %s", c.line, code, stderr, ran, got)
		}
	}
	for line, says := range map[string]string{"--from deploy/none": "no pod or node", "--to x": "want an address, a CIDR",
		"--result good": "want one of", "-A --service x": "cannot be combined", "--last=-1": "want 0 or more"} {
		if _, stderr, code := f.runPlugin(t, append([]string{"flows"}, strings.Fields(line)...)...); code != 2 ||
			!strings.Contains(stderr, says) {
			t.Errorf("%s: exit status %d: %s", line, code, stderr)
		}
	}
}

// TestFlowsRights: what kubectl's user may not read stays an address, or the ReplicaSet, and the command says so.
func TestFlowsRights(t *testing.T) {
	for _, c := range []struct{ name, forbidden, client, says string }{
		{"the pods of all namespaces", "/api/v1/pods", "deployment/shop/web", "those of others stay addresses"},
		{"pods", "pods", "10.244.1.1", "addresses stay without names"},
		{"ReplicaSets", "replicasets", "replicaset/shop/web-5f", "you may not get ReplicaSets"},
	} {
		f := talkingShop()
		f.run = talk
		f.forbidden = func(path string) bool {
			return !strings.Contains(path, "kube-system") && (strings.HasSuffix(path, c.forbidden) || strings.Contains(path,
				"/"+c.forbidden+"/"))
		}
		stdout, stderr, code := f.runPlugin(t, "map", "-n", "shop", "--node", "node-1")
		if !strings.Contains(stdout, "\n"+c.client+" ") || !strings.Contains(stderr, c.says) || code != 0 {
			t.Errorf("without a right to %s: exit status %d: %s\n%s", c.name, code, stderr, stdout)
		}
	}
}

// TestFlowsFollow: flows come as rows while nodes print them, a node that ends with an error is one, and the node's
// commands end with the plugin.
func TestFlowsFollow(t *testing.T) {
	f := talkingShop()
	f.gaveUp = make(chan bool, 1)
	started := make(chan struct{})
	f.run = func(node string, args []string) (string, int) {
		if !slices.Contains(args, "--follow") || args[len(args)-1] != untilStdinCloses {
			t.Errorf("node %s runs %q", node, args)
		}
		switch node {
		case "node-1":
			return flowText(1, 30, "10.244.1.1", "shop/cart", "10.244.2.2:8080", "answered", 0.0004) + "\n" +
				flowText(2, 30, "10.244.2.2", "shop/cart", "10.244.2.2:8080", "waiting", 0) + "\n", 0
		case "node-2":
			close(started)
			return "", neverAnswers
		}
		return talk(node, args)
	}
	kubeconfig := f.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type ended struct {
		stdout, stderr string
		code           int
	}
	done := make(chan ended)
	out := &notifying{want: 5, reached: make(chan struct{})}
	go func() {
		code := executeTo(ctx, out, "--kubeconfig", kubeconfig, "flows", "-n", "shop", "--follow")
		done <- ended{out.String(), "", code}
	}()
	<-out.reached // a header, two flows and two nodes
	<-started
	cancel()
	if stdin := <-f.gaveUp; !stdin {
		t.Error("the node's command has no input that could end")
	}
	e := <-done
	for _, want := range []string{"node-1 pod/shop/web-5f-a shop/cart:http/tcp pod/shop/cart-0 answered 400us",
		"node-1 pod/shop/cart-0 shop/cart:http/tcp pod/shop/cart-0 waiting", "node-3 - - - off", "node-4 - - - too-old"} {
		if !strings.Contains(squeezed(e.stdout), want) {
			t.Errorf("no row %q in:\n%s", want, e.stdout)
		}
	}
	if strings.Count(e.stdout, "NODE") != 1 {
		t.Errorf("the header is not there once:\n%s", e.stdout)
	}
}

// TestFlowsFollowFrom: what only the plugin can choose begins with the last ones of those, and comes once.
func TestFlowsFollowFrom(t *testing.T) {
	f := talkingShop()
	web := func(id int) string {
		return flowText(id, 100-id, "10.244.1.1", "shop/cart", "10.244.2.2:8080", "answered", 0.0004)
	}
	other := func(id int) string {
		return flowText(id, 100-id, "10.244.1.3", "shop/cart", "10.244.2.2:8080", "answered", 0.0004)
	}
	f.run = func(node string, args []string) (string, int) {
		switch got := strings.Join(args, " "); got {
		case "flows -o json --last 0 -n shop":
			return flowsText(node, web(1), web(2), web(3), other(4), other(5)), 0
		case "flows -o json --follow --last 0 -n shop " + untilStdinCloses:
			return strings.Join([]string{web(1), web(2), web(3), other(4), other(5), other(6), web(7)}, "\n"), 0
		default:
			return stderrOnly + got, 2
		}
	}
	stdout, _, _ := f.runPlugin(t, "flows", "-n", "shop", "--node", "node-1", "-f", "--from", "deploy/web", "--last", "2",
		"-o", "custom-columns=SEQ:.seq", "--no-headers")
	if got := strings.Join(strings.Fields(stdout), " "); got != "2 3 7" {
		t.Errorf("it shows the flows %q, want 2 3 7", got)
	}
}

// TestFlowsCannot: a node that cannot follow is silent, with its reason; it is not one without connections.
func TestFlowsCannot(t *testing.T) {
	f := newFakeCluster("node-1")
	f.run = func(string, []string) (string, int) {
		return stderrOnly + "nftproxy cannot follow connections on this node: the group is taken", 2
	}
	for command, says := range map[string]string{"flows": "node-1 - - - cannot", "map": "the group is taken"} {
		stdout, stderr, code := f.runPlugin(t, command)
		if !strings.Contains(squeezed(stdout)+stderr, says) || code != 1 {
			t.Errorf("%s: exit status %d: %s\n%s", command, code, stderr, stdout)
		}
	}
	if stdout, _, _ := f.runPlugin(t, "map", "-o", "svg"); !strings.Contains(stdout, "by 0 of 1 nodes") {
		t.Errorf("the picture counts the node: %s", stdout)
	}
}

// TestFlowsOff: if no node follows connections, it is said how to have it; and --follow has a bound.
func TestFlowsOff(t *testing.T) {
	f := newFakeCluster("node-1", "node-2")
	f.run = func(string, []string) (string, int) { return talk("node-3", nil) }
	for _, command := range []string{"flows", "map"} {
		_, stderr, code := f.runPlugin(t, command)
		if code != 2 || !strings.Contains(stderr, "start nftproxy with --nftproxy-flows") {
			t.Errorf("%s: exit status %d: %s", command, code, stderr)
		}
	}
	for i := range 33 {
		f.addNode(fmt.Sprintf("more-%d", i))
	}
	if _, stderr, code := f.runPlugin(t, "flows", "-f"); code != 2 || !strings.Contains(stderr, "up to 32 nodes, not 35") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

// oldAndNew is talk of nodes that are asked for a window of 40 s and compressed answers, of which node-2 does not know
// some flags.
func oldAndNew(t *testing.T, unknown ...string) func(string, []string) (string, int) {
	return func(node string, args []string) (string, int) {
		known := []string{"--since=40s", "--gzip"}
		if node == "node-2" {
			for _, flag := range unknown {
				isFlag := func(arg string) bool { return strings.HasPrefix(arg, flag) }
				if slices.ContainsFunc(args, isFlag) {
					return stderrOnly + "unknown flag: " + flag, 2
				}
				known = slices.DeleteFunc(known, isFlag)
			}
		}
		if got, want := strings.Join(args, " "), strings.Join(append([]string{"flows -o json --last 0 -n shop"}, known...),
			" "); got != want {
			t.Errorf("node %s runs %q, want %q", node, got, want)
		}
		text, code := talk(node, args)
		if code == 0 && slices.Contains(args, "--gzip") {
			text = zipped(t, text)
		}
		return text, code
	}
}

// TestMap: pods are grouped by workload, the numbers are those of the sample times its weight, and each -o has it.
// Nodes send only what began within the window, and compressed, but for older ones, which have no flags for that.
func TestMap(t *testing.T) {
	f := talkingShop()
	f.run = oldAndNew(t, "--since", "--gzip")
	stdout, stderr, code := f.runPlugin(t, "map", "-n", "shop", "-o", "wide", "--window", "40s")
	want := `CLIENT SERVICE ENDPOINT RATE ANSWER FAILED CAUSE ANSWER-95% OPEN FROM TO FOLLOWED
deployment/shop/web shop/cart:http/tcp statefulset/shop/cart 0.8/s 370us 0% - 540us 0 9.6kB 128kB 2
203.0.113.7 shop/cart:http/tcp statefulset/shop/cart 0.4/s 30ms 0% - 30ms 0 4.8kB 64kB 1
cronjob/other/report shop/cart:http/tcp statefulset/shop/cart 0.4/s - 100% refused - 0 4.8kB 64kB 1
node/node-1 shop/cart:http/tcp - 0.4/s - 100% dropped - 0 4.8kB 64kB 1
`
	if squeezed(stdout) != want || code != 1 || !strings.Contains(stderr, "node-4: nftproxy is older") {
		t.Errorf("exit status %d: %s\n%s", code, stderr, squeezed(stdout))
	}
	f.run = oldAndNew(t, "--gzip")
	if again, _, _ := f.runPlugin(t, "map", "-n", "shop", "-o", "wide", "--window", "40s"); squeezed(again) != want {
		t.Errorf("from a node that knows no --gzip:\n%s", squeezed(again))
	}
	for format, want := range map[string]string{
		"svg":  "<title>deployment/shop/web</title>",
		"dot":  `[label="deployment/shop/web"]`,
		"json": `"connectionsPerSecond": 0.8`,
		"name": "link.nftproxy.io/",
		"jsonpath={.items[?(@.state==\"off\")].node}": "node-3",
	} {
		stdout, stderr, code := f.runPlugin(t, "map", "-n", "shop", "-o", format, "--window", "40s")
		if !strings.Contains(stdout, want) || code != 1 || !strings.Contains(stderr, "node-3: nftproxy follows no") {
			t.Errorf("-o %s: exit status %d: %s\n%s", format, code, stderr, stdout)
		}
	}
	if _, stderr, code := f.runPlugin(t, "map", "-o", "png"); code != 2 || !strings.Contains(stderr, "png") {
		t.Errorf("-o png: exit status %d: %s", code, stderr)
	}
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestUnzipped: what a node compresses is bounded, and so is what it breaks off.
func TestUnzipped(t *testing.T) {
	for _, text := range []string{"", "{}", strings.Repeat("x", 1<<20)} {
		for _, sent := range []string{text, zipped(t, text)} {
			if got, err := unzipped([]byte(sent)); err != nil || string(got) != text {
				t.Errorf("%d bytes become %d: %v", len(text), len(got), err)
			}
		}
	}
	huge := zipped(t, strings.Repeat(" ", mostUnzipped+1))
	if _, err := unzipped([]byte(huge)); err == nil || !strings.Contains(err.Error(), "more than 64 MiB") {
		t.Errorf("%d bytes that become more than the bound: %v", len(huge), err)
	}
	if _, err := unzipped([]byte(huge[:len(huge)/2])); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half of the bytes: %v", err)
	}
}

// TestMapLinks: what --links leaves out is said, in a picture, too.
func TestMapLinks(t *testing.T) {
	f := talkingShop()
	f.run = talk
	stdout, stderr, _ := f.runPlugin(t, "map", "-n", "shop", "--links", "2", "-o", "svg")
	const says = "2 more links are left out"
	if !strings.Contains(stdout, says) || !strings.Contains(stderr, says) || strings.Contains(stdout, "203.0.113.7") {
		t.Errorf("%s\n%s", stderr, stdout)
	}
}
