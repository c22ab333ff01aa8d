package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clusterNeighbour is a program that a whole cluster has, as it is set up for one row. It runs on the cluster of
// command realcluster.
type clusterNeighbour struct {
	// name is unique among all neighbours, and names the file of the result.
	name string
	// what says in some words how the program is set up.
	what string
	// modules are the Go modules of the programs, by the folder below hack that pins their versions.
	modules map[string]string
	// up are further arguments of "realcluster up".
	up []string
	// focus is the regular expression for the names of Kubernetes' own tests that run, and tests says which these are.
	focus, tests string
	// setting is what nftproxy beside the program wants of the operator, in Markdown; empty for nothing.
	setting string
	// notes are for operators. A result has them only if it is good.
	notes []string
}

func clusterNeighbours() []clusterNeighbour {
	const plugins, flannel = "github.com/containernetworking/plugins", "github.com/flannel-io/flannel"
	const kubeRouter = "github.com/cloudnativelabs/kube-router/v2"
	// What holds for each engine that judges packets after nftproxy has chosen the endpoint.
	targetPorts := "So ports in a NetworkPolicy are those of pods (`targetPort`), and `egress` to a cluster IP as " +
		"`ipBlock` matches nothing: name the pods."
	outside := "An `ipBlock` for clients outside wants `externalTrafficPolicy: Local`. With `Cluster` the endpoint's " +
		"node may see a node's address."
	network := func(name, what string) clusterNeighbour {
		return clusterNeighbour{
			name: name, what: what, modules: map[string]string{"flannel": flannel, "cni": plugins},
			up: []string{"--cni=" + name}, focus: `\[Conformance\]`, tests: "`[Conformance]`",
			notes: []string{
				"flannel reaches the API server by its cluster IP. Until nftproxy serves that, it ends, and the kubelet starts " +
					"it again.",
				"The module of the CNI plugin flannel is apart from flannel's. The DaemonSet writes the configuration that the " +
					"plugin gives to the plugins bridge and host-local.",
			},
		}
	}
	return []clusterNeighbour{
		network("flannel", "the pods' network, backend vxlan, with the CNI plugins bridge, host-local and portmap"),
		network("flannel-host-gw", "the same with backend host-gw"),
		network("flannel-nftables", "backend vxlan, rules by nftables instead of iptables"),
		{
			name: "kube-router", what: "the pods' network by BGP in a full mesh, with the CNI plugins bridge, host-local and " +
				"portmap, and NetworkPolicies of IPv4; without its service proxy",
			modules: map[string]string{"kube-router": kubeRouter, "cni": plugins},
			up:      []string{"--cni=kube-router", "--policies=kube-router"}, focus: `\[Conformance\]`, tests: "`[Conformance]`",
			setting: "`\"hairpinMode\": true` for the CNI plugin bridge, in the ConfigMap `kube-router-cfg` or in " +
				"`/etc/cni/net.d/10-kuberouter.conflist`",
			notes: []string{
				"kube-router's own manifest has no `hairpinMode`, since its service proxy sets that. Without it a pod gets no " +
					"answer from a Service that leads back to the pod (tried in this cluster: time-outs of both families, and " +
					"answers with it). `nftproxy check` names the bridge `kube-bridge` once Services are served.",
				"As in its own manifest, it enforces NetworkPolicies of IPv4 only (see kube-router-policies). Routes are of both " +
					"families.",
				"By its source, kube-router learns of the pod addresses of a new node at its next look at all nodes, every five " +
					"minutes (`--routes-sync-period`), and masquerades connections of pods to pods of that node until then. So this " +
					"run has 10 s.",
				"kube-router reaches the API server by its cluster IP. Until nftproxy serves that, it is not ready.",
			},
		},
		{
			name: "kube-router-policies", what: "a network policy engine by rules of iptables and ipsets, for IPv4 only " +
				"(`--run-firewall --run-router=false --run-service-proxy=false`)",
			modules: map[string]string{"kube-router": kubeRouter},
			up:      []string{"--policies=kube-router"}, focus: "NetworkPolicy", tests: "NetworkPolicy",
			notes: []string{
				"The engine sees the client's own address and the endpoint's: its rules are in the chains INPUT, FORWARD and " +
					"OUTPUT of iptables' table filter (`KUBE-ROUTER-*`), after nftproxy has translated to the endpoint and before " +
					"it translates the client's address.",
				targetPorts, outside,
				"What it forbids it refuses: TCP clients see \"connection refused\" at once, the same as from a Service without " +
					"endpoints.",
				"IPv6 is left open: with `--enable-ipv6=true` v2.1.0 writes rules that name sets which do not exist, and " +
					"`ip6tables-restore` refuses them (`Set KUBE-SRC-JSGDRYHOC4L6K7WA doesn't exist`; kube-router's issue 1653, " +
					"mended after v2.1.0). It also writes old members back into the sets of IPv4 then, so that new pods are " +
					"refused. Both are faults of kube-router alone: rules of nftproxy play no part. v2.1.0 is the newest release " +
					"that could be had for this run.",
			},
		},
		{
			name: "kube-network-policies", what: "a network policy engine that judges packets in a queue, by rules for " +
				"iptables' target NFQUEUE",
			modules: map[string]string{"policies": "sigs.k8s.io/kube-network-policies"},
			up:      []string{"--policies=kube-network-policies"}, focus: "NetworkPolicy", tests: "NetworkPolicy",
			notes: []string{
				"The engine sees the client's own address and the endpoint's: its hook is postrouting, before addresses of " +
					"clients are translated there (priority 100), and after prerouting and output, where nftproxy translates to the " +
					"endpoint (priority -100).",
				targetPorts, outside,
				"A kernel without nftables' `queue` (`CONFIG_NFT_QUEUE`) refuses the engine's own rules. The engine then says so " +
					"at level info only, stays `Running` and enforces nothing; `nftproxy check` says that a program waits for " +
					"packets in a queue and that no rule hands it any. Try a NetworkPolicy after the installation. This run had " +
					"such a kernel, and so the rules of `test/cmd/realcluster/manifests/kube-network-policies.yaml`.",
			},
		},
		{
			name: "metallb", what: "gives Services of type LoadBalancer addresses, of both families, and announces each from " +
				"one node by ARP and neighbour discovery (layer 2), with its own manifest",
			modules: map[string]string{"metallb": "go.universe.tf/metallb"},
			up:      []string{"--announcer=metallb"}, focus: "LoadBalancers", tests: "LoadBalancers",
			notes: []string{
				"No setting is needed: MetalLB puts its addresses on no interface, and nftproxy takes what comes to them.",
				"In layer 2 one node has the address. With `externalTrafficPolicy: Local` only that node's endpoints get " +
					"connections. Two of Kubernetes' tests want more, and so they are left out.",
				"A third is left out after a run: *should only target nodes with endpoints* asks the health check node port at " +
					"both addresses of each node, for a Service of IPv4. nftproxy answers in IPv4 only, as kube-proxy does " +
					"(`serviceFamily` in its package `healthcheck`).",
				"MetalLB's webhook was off in this run: the API server of this cluster is on no node and reaches no cluster IP. " +
					"Its modes for BGP were not tried: for one of them the speaker was built with a stand-in for the objects of " +
					"frr-k8s, whose pinned version could not be had.",
			},
		},
	}
}

// clusterResult is what a run showed of one neighbour of a cluster.
type clusterResult struct {
	Name, What string
	Versions   []string
	Kernel     string
	Date       string
	// Smoke and Tests are what the smoke tests and Kubernetes' own tests wrote, by lines.
	Smoke, Tests []string
	// Focus says which of Kubernetes' own tests ran.
	Focus string
	// Passed says that all of both passed.
	Passed  bool
	Setting string `json:",omitempty"`
	Notes   []string
}

// tryOnCluster brings a cluster up with the neighbour, runs the tests, and removes it.
func tryOnCluster(ctx context.Context, n clusterNeighbour) (r clusterResult, err error) {
	r = clusterResult{Name: n.name, What: n.what, Date: time.Now().UTC().Format(time.DateOnly), Focus: n.tests,
		Setting: n.setting}
	if r.Kernel, err = kernel(); err != nil {
		return r, err
	}
	for _, folder := range slices.Sorted(maps.Keys(n.modules)) {
		version, err := lines(ctx, "go", "-C", filepath.Join("hack", folder), "list", "-m", "-f", "{{.Path}} {{.Version}}",
			n.modules[folder])
		if err != nil {
			return r, err
		}
		r.Versions = append(r.Versions, version...)
	}
	if _, err := lines(ctx, "make", "realcluster"); err != nil {
		return r, err
	}
	const command = "bin/realcluster"
	defer func() {
		_, failed := lines(context.WithoutCancel(ctx), command, "down")
		err = errors.Join(err, failed)
	}()
	if _, err := lines(ctx, command, append([]string{"up", "--nodes=3", "--e2e"}, n.up...)...); err != nil {
		return r, err
	}
	var smoke, tests error
	r.Smoke, smoke = lines(ctx, command, "smoke")
	r.Tests, tests = lines(ctx, command, "e2e", "--focus="+n.focus)
	for _, err := range []error{smoke, tests} {
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			return r, err
		}
	}
	i := 0
	for i < len(r.Tests) && !strings.HasPrefix(r.Tests[i], "sig-network: ") {
		i++ // what the suite itself writes meanwhile
	}
	r.Tests = r.Tests[i:]
	if r.Passed = smoke == nil && tests == nil; r.Passed {
		r.Notes = n.notes
	}
	return r, nil
}

// lines runs a command, shows its output, and returns it by lines.
func lines(ctx context.Context, name string, args ...string) ([]string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &out), os.Stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w", cmd, err)
	}
	return strings.Split(strings.TrimRight(out.String(), "\n"), "\n"), err
}

func kernel() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", os.NewSyscallError("uname", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}

func (r clusterResult) verdict() string {
	switch {
	case !r.Passed:
		return "does not"
	case r.Setting != "":
		return "works with this setting: " + r.Setting
	}
	return "works"
}

// clustersSection is the part of the page about clusters.
func clustersSection(docs string) (text string, without []string, err error) {
	rows := ""
	var notes []string
	for _, n := range clusterNeighbours() {
		r := new(clusterResult)
		found, err := read(docs, filepath.Join("cluster", n.name), r)
		if err != nil {
			return "", nil, err
		}
		if !found {
			without = append(without, n.name+" ("+n.what+")")
			continue
		}
		tests := ""
		if len(r.Tests) > 0 {
			tests, _, _ = strings.Cut(strings.TrimPrefix(r.Tests[0], "sig-network: "), ",")
			_, more, _ := strings.Cut(r.Tests[0], ", ")
			failed, _, _ := strings.Cut(more, ",")
			tests += ", " + failed
		}
		rows += fmt.Sprintf("| %s | %s | %s | %s: %s | %s |\n", r.Name, r.What, strings.Join(r.Versions, ", "), r.Focus,
			tests, r.verdict())
		notes = append(notes, remarks(r.Name, r.Notes)...)
	}
	if rows == "" {
		return "", without, nil
	}
	return clustersHead + rows + list(notes), without, nil
}

const clustersHead = `
## Programs of a cluster

Each run is on the cluster of ` + "`make cluster`" + ` with three nodes of both families. Requests go to Services while a Deployment and nftproxy are
updated, a node is drained and one joins: none may fail. Then Kubernetes' own sig-network tests run, those that the table names.

| Program | How it is set up | Versions | Kubernetes' tests | nftproxy beside it |
|---|---|---|---|---|
`
