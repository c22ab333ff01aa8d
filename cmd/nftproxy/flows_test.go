package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	daemonflows "nftproxy/daemon/flows"
	modelflows "nftproxy/model/flows"
	"nftproxy/nft/flowtable"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// flowsManifest has Services of two protocols and families: web and dns answer, closed has an endpoint without a
// listener, silent one that drops, and empty none.
func flowsManifest(server, silent *testnet.Pod) string {
	var b strings.Builder
	for i, s := range []struct {
		name string
		port int
		pod  *testnet.Pod
	}{{"web", 8080, server}, {"closed", 9, server}, {"silent", 8080, silent}, {"empty", 0, nil}} {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {clusterIPs: [10.96.0.%d, "fd00:96::%d"], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}
`, s.name, i+1, i+1)
		if s.pod == nil {
			continue
		}
		for j, a := range s.pod.Addrs {
			family := []string{"IPv4", "IPv6"}[j]
			if a.Is4() != (family == "IPv4") {
				family = map[bool]string{true: "IPv4", false: "IPv6"}[a.Is4()]
			}
			fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%d, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: t, port: %[4]d}, {name: u, port: %[4]d, protocol: UDP}]
endpoints: [{addresses: [%[5]q]}]
`, s.name, j, family, s.port, a)
		}
	}
	return b.String()
}

// oracle is what a client knows of its connection.
type oracle struct {
	service, protocol string
	from              netip.AddrPort
	result            modelflows.Result
	endpoint          netip.AddrPort
	cause             string
	sent              int
}

// connectTo makes a connection, sends bytes if it is answered, and says what it knows.
func connectTo(ctx context.Context, t *testing.T, from *testnet.Pod, protocol, to string, o oracle) oracle {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	port := freePort.Add(1)
	a := from.Addrs.V4()
	if strings.HasPrefix(to, "[") {
		a = from.Addrs.V6()
	}
	o.from, o.protocol = netip.AddrPortFrom(a, uint16(port)), protocol
	c, err := from.NS.DialFrom(ctx, protocol, o.from.String(), to)
	if err != nil {
		return o
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if n, err := c.Write([]byte("?")); err == nil {
		o.sent = n
	}
	_, err = c.Read(make([]byte, 200))
	if answered := err == nil; answered != (o.result == modelflows.Answered) {
		t.Errorf("%s %s: read: %v, and the test wants it %s", protocol, to, err, o.result)
	}
	return o
}

var freePort atomic.Int32

// askedFlows asks the process for flows until they satisfy.
func askedFlows(t *testing.T, node *testnet.Namespace, enough func([]modelflows.Flow) bool) []modelflows.Flow {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, a string) (net.Conn,
		error) {
		return node.Dial(ctx, "tcp", a)
	}}}
	var last []modelflows.Flow
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(awaitLimit)
	for {
		response, err := client.Get("http://" + defaultMetricsAddress + daemonflows.Path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		var a daemonflows.Answer
		if err = errors.Join(err, json.Unmarshal(body, &a)); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if last = a.Flows; enough(last) {
			return last
		}
		select {
		case <-ticker.C:
		case <-limit:
			text, _ := json.MarshalIndent(last, "", " ")
			t.Fatalf("not enough flows: %s", text)
		}
	}
}

// TestFlows: with 1/1 each connection that clients have made is there once, with its endpoint and result: in both
// families, of TCP and UDP, through a kill of the process and the flush of its table.
func TestFlows(t *testing.T) {
	freePort.Store(20_000)
	topology := testnet.NewForTest(t, testnet.Config{})
	pods := map[string]*testnet.Pod{}
	for _, name := range []string{"client", "server", "silent"} {
		pod, err := topology.AddPod(name)
		testnet.Require(t, err)
		pods[name] = pod
	}
	for _, a := range pods["server"].Addrs {
		for _, protocol := range []string{testnet.TCP, testnet.UDP} {
			_, err := pods["server"].NS.Serve(protocol, netip.AddrPortFrom(a, 8080), "server")
			testnet.Require(t, err)
		}
	}
	nft := netfilter.NFTForTest(t)
	testnet.Require(t, nft.Load(pods["silent"].NS, "table inet silent {\nchain input {\n"+
		"type filter hook input priority 0\nmeta l4proto { tcp, udp } drop\n}\n}\n"))
	path := manifest(t, flowsManifest(pods["server"], pods["silent"]))
	run := func() *running {
		return start(t, topology.Node, "--nftproxy-manifests", path, "--cluster-cidr", "10.244.0.0/16,fd00:244::/56",
			"--nftproxy-flows=1/1", "--metrics-bind-address="+defaultMetricsAddress)
	}
	r := run()
	awaitFollowing(r)
	await := func() { // until the process listens
		askedFlows(t, topology.Node, func([]modelflows.Flow) bool {
			return topology.Node.Run(exec.Command("nft", "list", "table", "inet", flowtable.Name("nftproxy"))) == nil
		})
	}
	round := func() {
		await()
		var all []oracle
		for i, service := range []string{"web", "closed", "silent", "empty"} {
			for _, protocol := range []string{testnet.TCP, testnet.UDP} {
				for _, to := range []string{fmt.Sprintf("10.96.0.%d:80", i+1), fmt.Sprintf("[fd00:96::%d]:80", i+1)} {
					o := oracle{service: "default/" + service, result: modelflows.Refused}
					server, port := pods["server"], uint16(8080)
					switch service {
					case "web":
						o.result = modelflows.Answered
					case "closed":
						port = 9
					case "silent":
						o.result, server = modelflows.Unanswered, pods["silent"]
					case "empty":
						o.cause, server = "no-endpoints", nil
					}
					if server != nil {
						o.endpoint = netip.AddrPortFrom(server.Addrs.V4(), port)
						if strings.HasPrefix(to, "[") {
							o.endpoint = netip.AddrPortFrom(server.Addrs.V6(), port)
						}
					}
					all = append(all, connectTo(t.Context(), t, pods["client"], protocol, to, o))
				}
			}
		}
		compareFlows(t, topology.Node, all)
	}
	round()
	testnet.Require(t, r.cmd.Process.Kill())
	_ = r.cmd.Wait()
	r = run()
	awaitFollowing(r)
	round()
	testnet.Require(t, topology.Node.Run(exec.Command("nft", "delete", "table", "inet", flowtable.Name("nftproxy"))))
	round()
	cmd := exec.Command("nftproxy", "flows", "closed", "--result", "refused", "--from", "10.244.0.0/16", "--address",
		defaultMetricsAddress)
	var out strings.Builder
	cmd.Stdout = &out
	testnet.Require(t, topology.Node.Run(cmd))
	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 5 || // TCP and UDP, of two rounds
		strings.Count(out.String(), "default/closed:") != 4 {
		t.Errorf("nftproxy flows prints:\n%s", out.String())
	}
	r.end()
}

// awaitFollowing waits until the process serves, answers and follows connections.
func awaitFollowing(r *running) {
	r.Helper()
	left := map[string]bool{"synced": true, "serving": true, "following connections": true}
	r.await("all of it", func(l logged) bool {
		if l.Msg != "serving" || l.Address == defaultMetricsAddress {
			delete(left, l.Msg)
		}
		return len(left) == 0
	})
}

// compareFlows waits for the flows of the oracle, settled, and compares them.
func compareFlows(t *testing.T, node *testnet.Namespace, all []oracle) {
	t.Helper()
	find := func(list []modelflows.Flow, o oracle) (found []modelflows.Flow) {
		for _, f := range list {
			if f.Client == o.from && f.Protocol == o.protocol {
				found = append(found, f)
			}
		}
		return found
	}
	list := askedFlows(t, node, func(list []modelflows.Flow) bool {
		for _, o := range all {
			found := find(list, o)
			if len(found) == 0 || found[0].Result == modelflows.Waiting ||
				o.protocol == testnet.TCP && o.result == modelflows.Answered && !found[0].Ended {
				return false
			}
		}
		return true
	})
	for _, o := range all {
		found := find(list, o)
		if len(found) != 1 {
			t.Errorf("%+v: %d flows, want 1: %+v", o, len(found), found)
			continue
		}
		f := found[0]
		if string(f.Service) != o.service || f.Result != o.result || f.Endpoint != o.endpoint || f.Cause != o.cause ||
			f.Weight != 1 || f.Way != modelflows.ByClusterIP {
			t.Errorf("client: %+v\nflow: %+v", o, f)
		}
		if timed := f.AnswerSeconds != nil; timed != (f.Endpoint.IsValid() && f.Result != modelflows.Unanswered) {
			t.Errorf("time to the first answer %v: %+v", f.AnswerSeconds, f)
		} else if timed && (*f.AnswerSeconds < 0 || *f.AnswerSeconds > 5) {
			t.Errorf("answered after %v s: %+v", *f.AnswerSeconds, f)
		}
		if f.Ended && f.Result == modelflows.Answered && (f.PacketsFrom < 4 || f.PacketsTo < 3 || f.BytesFrom < 100) {
			t.Errorf("too few packets or bytes: %+v", f)
		}
	}
}
