package preflight

import (
	"context"
	"fmt"
	"strings"

	apiversion "k8s.io/apimachinery/pkg/version"

	"nftproxy/watch"
)

// lacksOf says what an API server of that version lacks.
func lacksOf(v apiversion.Info) (lacks []string) {
	n := watch.MinorOf(v)
	if n < 31 {
		lacks = append(lacks, "it cannot leave out headless Services, so that nftproxy gets them too (before 1.31)")
	}
	if n < 33 {
		lacks = append(lacks, "it has no ServiceCIDRs, unless they are turned on, so that addresses of no Service are not "+
			"dropped (before 1.33)")
	}
	return lacks
}

// Server asks the API server for its version, and says what that one lacks.
func Server(ctx context.Context, from watch.Source) Finding {
	f := Finding{Probe: "API server", Level: Red, Do: "give the kubeconfig that run has; its address has to work " +
		"without a service proxy"}
	source, err := from.Connect()
	if err != nil {
		f.Found = err.Error()
		return f
	}
	v, err := watch.ServerVersion(ctx, source.Client)
	if err != nil {
		f.Found = err.Error()
		return f
	}
	return findingOf(v)
}

func findingOf(v apiversion.Info) Finding {
	f := Finding{Probe: "API server", Level: Green, Found: v.GitVersion}
	if lacks := lacksOf(v); len(lacks) > 0 {
		f.Found += ": " + strings.Join(lacks, "; ")
	}
	if outside := watch.OutsideRange(v); outside != "" {
		f.Level, f.Found, f.Do = Yellow, outside, fmt.Sprintf("upgrade the control plane to Kubernetes 1.%d or later",
			watch.OldestServer)
	}
	return f
}
