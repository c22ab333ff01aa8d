package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"nftproxy/look/nodestatus"
)

// well is the status of a node where all is well.
func well(node string) nodestatus.Status {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	updated := now.Add(-30 * time.Second)
	return nodestatus.Status{Node: node, Version: "v1.0.0", Time: now, Started: now.Add(-3 * time.Hour), Ready: true,
		ReadyText: "ok", Healthy: true, Tables: []nodestatus.Table{{Family: "IPv4", Name: "nftproxy", Updated: &updated},
			{Family: "IPv6", Name: "nftproxy", Updated: &updated}},
		LastSync: &nodestatus.Sync{End: updated, LatencySeconds: 0.004, Written: 2},
		Services: 12, Endpoints: 30, Elements: 90, States: map[string]int{"serving": 12}, Configuration: "aaaaaaaaaaaa"}
}

// statusOf has each node answer with its status, changed; a change that returns false makes the node never answer.
func statusOf(change func(s *nodestatus.Status) bool) func(string, []string) (string, int) {
	return func(node string, args []string) (string, int) {
		if strings.Join(args, " ") != "status -o json" {
			return "", 2
		}
		s := well(node)
		if !change(&s) {
			return "", neverAnswers
		}
		s.FindFaults()
		text, _ := json.Marshal(s)
		exit := min(len(s.Faults), 1)
		return string(text), exit
	}
}

// TestStatus: each node is a row, whatever is wrong with it; faults and differences are named; the exit status says
// whether all is well.
func TestStatus(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *fakeCluster, s *nodestatus.Status) bool
		wants  []string
		lacks  string
		code   int
	}{
		"well": {func(*fakeCluster, *nodestatus.Status) bool { return true },
			[]string{"NODE", "node-1   yes     v1.0.0    30s       4ms"}, "Faults", 0},
		"not ready": {func(_ *fakeCluster, s *nodestatus.Status) bool {
			s.Ready, s.ReadyText = s.Node != "node-2", "IPv4: waiting for services"
			return true
		}, []string{"node-2   no ", "Faults:\n  node-2: not ready: IPv4: waiting for services"}, "", 1},
		"behind, on several nodes": {func(_ *fakeCluster, s *nodestatus.Status) bool {
			s.Behind = &nodestatus.Behind{Resources: []string{"services"}, Since: s.Time, Error: "forbidden"}
			return true
		}, []string{"services", "node-1, node-2, node-3: the API server does not tell of services: forbidden"}, "", 1},
		"another proxy": {func(_ *fakeCluster, s *nodestatus.Status) bool {
			if s.Node == "node-3" {
				s.Warnings = []string{"kube-proxy runs beside nftproxy"}
			}
			return true
		}, []string{"node-3: kube-proxy runs beside nftproxy"}, "", 1},
		"quarantine": {func(_ *fakeCluster, s *nodestatus.Status) bool {
			s.States = map[string]int{"quarantined": 2}
			return true
		}, []string{"the kernel refused 2 Services or common parts of the rules"}, "", 1},
		"what objects have is no fault": {func(_ *fakeCluster, s *nodestatus.Status) bool {
			s.TroubledCount, s.LeftOutCount = 3, 1
			s.Troubled = []nodestatus.Service{{Namespace: "shop", Name: "cart", States: []string{"conflict"},
				Problems: []string{"external IP 198.51.100.7 is Service trouble/first's, which is older"}},
				{Namespace: "shop", Name: "web", States: []string{"too-large"}, Problems: []string{}}}
			return true
		}, []string{"12         0             1          3",
			"Problems of Services:\n  node-1, node-2, node-3: shop/cart: external IP",
			": shop/web: too-large\n", ": up to 1 more: "}, "Faults", 0},
		"many problems, the common ones first": {func(_ *fakeCluster, s *nodestatus.Status) bool {
			for i := range 8 {
				s.Troubled = append(s.Troubled, nodestatus.Service{Namespace: s.Node, Name: fmt.Sprint(i),
					States: []string{"conflict"}})
			}
			s.Troubled = append(s.Troubled, nodestatus.Service{Name: "common-part", States: []string{"quarantined"}})
			s.TroubledCount = len(s.Troubled)
			return true
		}, []string{"Problems of Services:\n  node-1, node-2, node-3: common-part: quarantined\n",
			"quarantined\n  node-1: node-1/0: conflict\n",
			"\n  node-2: node-2/0: conflict\n  node-2, node-3: up to 8 more: "}, "node-2/1", 0},
		"different versions and flags": {func(_ *fakeCluster, s *nodestatus.Status) bool {
			if s.Node == "node-2" {
				s.Version, s.Configuration, s.Services = "v1.1.0", "bbbbbbbbbbbb", 11
			}
			return true
		}, []string{"version: v1.0.0 on node-1, node-3; v1.1.0 on node-2", "configuration: aaaaaaaaaaaa on node-1, node-3; ",
			"number of Services: 12 on node-1, node-3; 11 on node-2"}, "Faults", 0},
		"no pod": {func(f *fakeCluster, _ *nodestatus.Status) bool {
			f.pods = f.pods[:2]
			return true
		}, []string{"node-3   no-pod", "node-3: no pod of nftproxy"}, "", 1},
		"control characters": {func(_ *fakeCluster, s *nodestatus.Status) bool {
			s.Version, s.Warnings = "v\x1b[31m", []string{"evil\x1b]0;title\x07"}
			return true
		}, []string{`v\x1b[31m`, `evil\x1b]0;title\a`}, "\x1b", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeCluster("node-1", "node-2", "node-3")
			c.change(f, &nodestatus.Status{})
			f.run = statusOf(func(s *nodestatus.Status) bool { return c.change(f, s) })
			stdout, stderr, code := f.runPlugin(t, "status")
			for _, want := range c.wants {
				if !strings.Contains(stdout, want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			if c.lacks != "" && strings.Contains(stdout, c.lacks) {
				t.Errorf("the output has %q", c.lacks)
			}
			if code != c.code || stderr != "" {
				t.Errorf("exit status %d, want %d; stderr %q", code, c.code, stderr)
			}
			if t.Failed() {
				t.Log(stdout)
			}
		})
	}
}

// TestStatusObjects: -o prints each node as an object, as kubectl does.
func TestStatusObjects(t *testing.T) {
	f := newFakeCluster("node-1", "node-2")
	f.run = statusOf(func(s *nodestatus.Status) bool {
		s.Ready = s.Node == "node-1"
		return true
	})
	for output, want := range map[string]string{
		"name":                                         "nodestatus.nftproxy.io/node-1\nnodestatus.nftproxy.io/node-2\n",
		"jsonpath={.items[*].status.services}":         "12 12",
		"custom-columns=N:.node,R:.status.ready":       "N        R\nnode-1   true\nnode-2   false\n",
		`jsonpath={.items[?(@.faults)].node}`:          "node-2",
		"go-template={{range .items}}{{.pod}} {{end}}": "nftproxy-1 nftproxy-2 ",
	} {
		if stdout, stderr, code := f.runPlugin(t, "status", "-o", output); stdout != want || code != 1 {
			t.Errorf("-o %s: %q, exit status %d, want %q; %s", output, stdout, code, want, stderr)
		}
	}
	if _, stderr, code := f.runPlugin(t, "status", "-o", "xml"); code != 2 || !strings.Contains(stderr, "xml") {
		t.Errorf("-o xml: exit status %d: %s", code, stderr)
	}
}

// TestStatusWait: --wait goes on while a node is not well, while the update is not through and while the API server is
// away, and says so; it ends with 1 if that lasts too long.
func TestStatusWait(t *testing.T) {
	f := newFakeCluster("node-1", "node-2")
	var lists atomic.Int32
	f.broken = func(path string) bool { return strings.HasSuffix(path, "/daemonsets") && lists.Add(1) == 2 }
	f.run = statusOf(func(s *nodestatus.Status) bool {
		s.Ready = s.Node == "node-1" || lists.Load() > 2
		return true
	})
	stdout, stderr, code := f.runPlugin(t, "status", "--wait")
	if code != 0 || strings.Count(stdout, "yes") != 2 || !strings.Contains(stderr, "1 of 2 nodes are well") ||
		!strings.Contains(stderr, "list DaemonSets") {
		t.Errorf("exit status %d: %s\n%s", code, stderr, stdout)
	}
	f.set.Status.UpdatedNumberScheduled = 1
	stdout, stderr, code = f.runPlugin(t, "status", "--wait", "--timeout", "1s")
	if code != 1 || strings.Count(stdout, "yes") != 2 || !strings.Contains(stdout, "nftproxy: 1 of 2 pods are updated") {
		t.Errorf("an update that is not through: exit status %d: %s\n%s", code, stderr, stdout)
	}
	if stdout, stderr, code := f.runPlugin(t, "status"); code != 0 {
		t.Errorf("without --wait: exit status %d: %s\n%s", code, stderr, stdout)
	}
	if _, stderr, code := f.runPlugin(t, "status", "--wait", "-w"); code != 2 {
		t.Errorf("--wait -w: exit status %d: %s", code, stderr)
	}
}

// TestStatusSkew: what nodes say of which the plugin does not know everything, and nodes that have no status.
func TestStatusSkew(t *testing.T) {
	f := newFakeCluster("newer", "older", "strange")
	f.run = func(node string, _ []string) (string, int) {
		switch node {
		case "newer":
			return `{"node":"newer","ready":true,"healthy":true,"moon":"full"}`, 1
		case "older":
			return "", 1
		}
		return "null", 0
	}
	stdout, stderr, code := f.runPlugin(t, "status")
	for _, want := range []string{"newer: nftproxy says that something is wrong, and this plugin does not know what",
		"older: ", "strange: nftproxy's answer is no status"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if code != 1 || t.Failed() {
		t.Errorf("exit status %d: %s\n%s", code, stderr, stdout)
	}
}

// TestManyNodes: 1,000 nodes that each take 50 ms answer in a time and a memory that people have.
func TestManyNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("a thousand connections")
	}
	f := newFakeCluster()
	for i := range 1000 {
		f.addNode(fmt.Sprintf("node-%04d", i))
	}
	f.delay = 50 * time.Millisecond
	f.run = statusOf(func(*nodestatus.Status) bool { return true })
	kubeconfig := f.start(t)
	begun := time.Now()
	stdout, stderr, code := runPlugin(t.Context(), "--kubeconfig", kubeconfig, "status")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%s, %d MB, the fake cluster's among them", time.Since(begun).Round(time.Millisecond), m.Sys>>20)
	if rows := strings.Count(stdout, "\nnode-"); rows != 1000 || code != 0 {
		t.Errorf("%d rows, exit status %d; %s", rows, code, stderr)
	}
}
