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
	// program is what operators call it.
	program string
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
	targetPorts := "A NetworkPolicy's ports are those of pods (`targetPort`). `egress` to a cluster IP as `ipBlock` " +
		"matches nothing: select the pods."
	outside := "For an `ipBlock` of clients outside, use `externalTrafficPolicy: Local`. With `Cluster` the endpoint's " +
		"node may see a node's address."
	network := func(name, what string) clusterNeighbour {
		return clusterNeighbour{
			name: name, program: "flannel", what: what, modules: map[string]string{"flannel": flannel, "cni": plugins},
			up: []string{"--cni=" + name}, focus: `\[Conformance\]`, tests: "`[Conformance]`",
			notes: []string{
				"flannel reaches the API server by its cluster IP. Until nftproxy serves that, flannel exits and is " +
					"restarted.",
			},
		}
	}
	return []clusterNeighbour{
		network("flannel", "the pods' network, backend vxlan, with the CNI plugins bridge, host-local and portmap"),
		network("flannel-host-gw", "the same with backend host-gw"),
		network("flannel-nftables", "backend vxlan, rules by nftables instead of iptables"),
		{
			name: "kube-router", program: "kube-router, network",
			what: "the pods' network by BGP in a full mesh, with the CNI plugins bridge, host-local and " +
				"portmap, and NetworkPolicies of IPv4; without its service proxy",
			modules: map[string]string{"kube-router": kubeRouter, "cni": plugins},
			up:      []string{"--cni=kube-router", "--policies=kube-router"}, focus: `\[Conformance\]`, tests: "`[Conformance]`",
			setting: "`\"hairpinMode\": true` for the CNI plugin bridge, in the ConfigMap `kube-router-cfg` or in " +
				"`/etc/cni/net.d/10-kuberouter.conflist`",
			notes: []string{
				"kube-router's own manifest has no `hairpinMode`. Without it a pod gets no answer from a Service " +
					"that leads back to it. `nftproxy check` names the bridge.",
				"For up to five minutes (`--routes-sync-period`; here 10 s) kube-router masquerades connections " +
					"of pods to those of a new node.",
				"kube-router reaches the API server by its cluster IP. Until nftproxy serves that, it is not ready.",
			},
		},
		{
			name: "kube-router-policies", program: "kube-router, policies",
			what: "NetworkPolicies only, by rules of iptables and " +
				"ipsets, for IPv4 (`--run-firewall --run-router=false --run-service-proxy=false`)",
			modules: map[string]string{"kube-router": kubeRouter},
			up:      []string{"--policies=kube-router"}, focus: "NetworkPolicy", tests: "NetworkPolicy",
			notes: []string{
				targetPorts, outside,
				"It refuses what it forbids: TCP clients see \"connection refused\", as from a Service without " +
					"endpoints.",
				"Do not use `--enable-ipv6=true` with v2.1.0: its rules name sets that do not exist (kube-router's " +
					"issue 1653), so IPv6 stays open, and new pods are refused in IPv4.",
			},
		},
		{
			name: "kube-network-policies", program: "kube-network-policies", what: "NetworkPolicies: the engine gets packets " +
				"from a queue, by rules with iptables' target NFQUEUE",
			modules: map[string]string{"policies": "sigs.k8s.io/kube-network-policies"},
			up:      []string{"--policies=kube-network-policies"}, focus: "NetworkPolicy", tests: "NetworkPolicy",
			notes: []string{
				targetPorts, outside,
				"On a kernel without nftables' `queue` (`CONFIG_NFT_QUEUE`) the engine stays `Running` and " +
					"enforces nothing; `nftproxy check` says so. Try a NetworkPolicy after the installation.",
			},
		},
		{
			name: "metallb", program: "MetalLB",
			what: "gives Services of type LoadBalancer addresses, of both families, and announces each from " +
				"one node by ARP and neighbour discovery (layer 2), with its own manifest",
			modules: map[string]string{"metallb": "go.universe.tf/metallb"},
			up:      []string{"--announcer=metallb"}, focus: "LoadBalancers", tests: "LoadBalancers",
			notes: []string{
				"In layer 2 one node has the address. With `externalTrafficPolicy: Local` only that node's endpoints " +
					"get connections.",
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
	if r.Versions, err = moduleVersions(ctx, n.modules); err != nil {
		return r, err
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

// moduleVersions returns the versions of modules that folders below hack pin.
func moduleVersions(ctx context.Context, modules map[string]string) (versions []string, err error) {
	for _, folder := range slices.Sorted(maps.Keys(modules)) {
		version, err := lines(ctx, "go", "-C", filepath.Join("hack", folder), "list", "-m", "-f", "{{.Path}} {{.Version}}",
			modules[folder])
		if err != nil {
			return nil, err
		}
		versions = append(versions, version...)
	}
	return versions, nil
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
			without = append(without, n.program+": "+n.what)
			continue
		}
		rows += row(n.program, filepath.Join("cluster", n.name), r.What, r.verdict())
		notes = append(notes, remarks(n.program, r.Notes)...)
	}
	if rows == "" {
		return "", without, nil
	}
	return clustersHead + rows + list(notes), without, nil
}

const clustersHead = `
## Programs of a cluster

Each ran on a dual-stack cluster of three nodes, under traffic and with Kubernetes' own sig-network tests.

| Program | How it is set up | nftproxy beside it |
|---|---|---|
`
