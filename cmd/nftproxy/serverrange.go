package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	apiversion "k8s.io/apimachinery/pkg/version"

	"nftproxy/look/preflight"
)

// The minor releases 1.x of API servers that make test-skew runs nftproxy with.
const (
	oldestServer = 29
	newestServer = 37
)

// minorOf returns the minor release of an API server, 0 if it is unknown. Some providers write it as 30+.
func minorOf(v apiversion.Info) int {
	if v.Major != "1" {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	if err != nil {
		return 0
	}
	return n
}

// outsideRange says in words that an API server is older than those that nftproxy is made for; empty if it is not. A newer one has
// the same API: all that nftproxy reads is stable.
func outsideRange(v apiversion.Info) string {
	if n := minorOf(v); n >= oldestServer {
		return ""
	}
	return fmt.Sprintf("the API server is %s: nftproxy is made for 1.%d to 1.%d, and was tried with no older one", cmp.Or(v.GitVersion, "of an unknown version"), oldestServer, newestServer)
}

// lacksOf says what an API server of that version lacks.
func lacksOf(v apiversion.Info) (lacks []string) {
	n := minorOf(v)
	if n < 31 {
		lacks = append(lacks, "it cannot leave out headless Services, so that nftproxy gets them too (before 1.31)")
	}
	if n < 33 {
		lacks = append(lacks, "it has no ServiceCIDRs, unless they are turned on, so that addresses of no Service are not dropped (before 1.33)")
	}
	return lacks
}

// serverFinding asks the API server of the flags for its version.
func serverFinding(ctx context.Context, o *sourceOptions) preflight.Finding {
	f := preflight.Finding{Probe: "API server", Level: preflight.Red, Do: "give the kubeconfig that run has; its address has to work without a service proxy"}
	_, client, _, err := o.client()
	if err != nil {
		f.Found = err.Error()
		return f
	}
	v, err := serverVersion(ctx, client)
	if err != nil {
		f.Found = err.Error()
		return f
	}
	return findingOf(v)
}

func findingOf(v apiversion.Info) preflight.Finding {
	f := preflight.Finding{Probe: "API server", Level: preflight.Green, Found: v.GitVersion}
	if lacks := lacksOf(v); len(lacks) > 0 {
		f.Found += ": " + strings.Join(lacks, "; ")
	}
	if outside := outsideRange(v); outside != "" {
		f.Level, f.Found, f.Do = preflight.Yellow, outside, fmt.Sprintf("upgrade the control plane to Kubernetes 1.%d or later", oldestServer)
	}
	return f
}
