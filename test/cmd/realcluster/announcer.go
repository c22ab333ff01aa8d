package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"nftproxy/test/cmd/realcluster/cluster"
)

// metalLB is MetalLB's name as an announcer.
const metalLB = "metallb"

// announcers are the values of --announcer; "" is none.
func announcers() []string { return []string{"", metalLB} }

//go:embed manifests/metallb-pool.yaml
var metalLBPool string

// metalLBRepository is that of its images, without the names of the programs.
const metalLBRepository = "quay.io/metallb/"

// metalLBAddition is MetalLB in layer 2: its own manifest, from the module whose version is pinned, with images that
// are made here and without its webhook. That checks MetalLB's own objects only, and the API server, which is no pod
// and on no node, reaches no cluster IP.
func metalLBAddition(ctx context.Context) (addition, error) {
	a := addition{daemonSet: "metallb-system/speaker", deployment: "metallb-system/controller"}
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join("hack", metalLB), "list", "-m", "-f",
		"{{.Dir}} {{.Version}}", "go.universe.tf/metallb")
	out, err := cmd.Output()
	if err != nil {
		return a, fmt.Errorf("find the module of MetalLB: %s: %w", cmd, err)
	}
	module, version, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	manifest, err := os.ReadFile(filepath.Join(module, "config", "manifests", "metallb-native.yaml"))
	if err != nil {
		return a, fmt.Errorf("read MetalLB's manifest: %w", err)
	}
	text, _, found := strings.Cut(string(manifest), "---\napiVersion: admissionregistration.k8s.io/v1\n")
	if !found {
		return a, fmt.Errorf("the manifest of MetalLB %s ends with no webhook", version)
	}
	edits := []string{
		"--log-level=info\n        env:\n        - name: METALLB_POD_NAME\n",
		"--log-level=info\n        - --webhook-mode=disabled\n        env:\n        - name: METALLB_POD_NAME\n",
	}
	for _, part := range []string{"controller", "speaker"} {
		// A tag of no release: it is made here.
		image := metalLBRepository + part + ":cluster"
		edits = append(edits, metalLBRepository+part+":"+version, image)
		a.programs = append(a.programs, program{image: image, tool: metalLB + "-" + part, path: part, alone: true})
	}
	for i := 0; i < len(edits); i += 2 {
		if strings.Count(text, edits[i]) != 1 {
			return a, fmt.Errorf("the manifest of MetalLB %s has %q not once", version, edits[i])
		}
	}
	ranges := cluster.LoadBalancerRanges()
	a.manifest = strings.NewReplacer(edits...).Replace(text)
	a.settings = strings.NewReplacer("NET4", ranges[0].String(), "NET6", ranges[1].String()).Replace(metalLBPool)
	return a, nil
}
