package main

import (
	"embed"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"nftproxy/test/lib/testnet"
)

//go:embed manifests
var embeddedManifests embed.FS

// The manifests that change when pods come and go, or weights change.
const (
	endpointsFile       = "web-endpoints.yaml"
	canaryEndpointsFile = "canary-endpoints.yaml"
	cartEndpointsFile   = "cart-endpoints.yaml"
	slowEndpointsFile   = "slow-endpoints.yaml"
	lazyEndpointsFile   = "lazy-endpoints.yaml"
	jobsEndpointsFile   = "jobs-endpoints.yaml"
)

const (
	nodeName    = "node-1"
	servicePort = 80
	podPort     = 8080
	nodePort    = 30080
)

// webAddrs are the cluster IPs of the service default/web, emptyAddrs those of
// default/empty, which has no endpoints.
func webAddrs() testnet.Addrs {
	return testnet.Addrs{netip.MustParseAddr("172.30.0.10"), netip.MustParseAddr("fd00:172::10")}
}

func emptyAddrs() testnet.Addrs {
	return testnet.Addrs{netip.MustParseAddr("172.30.0.20"), netip.MustParseAddr("fd00:172::20")}
}

// The services default/canary, default/cart, default/slow, default/lazy and default/jobs have one family.
func canaryAddrs() testnet.Addrs { return testnet.Addrs{netip.MustParseAddr("172.30.0.30")} }

func cartAddrs() testnet.Addrs { return testnet.Addrs{netip.MustParseAddr("172.30.0.40")} }

func slowAddrs() testnet.Addrs { return testnet.Addrs{netip.MustParseAddr("172.30.0.50")} }

func lazyAddrs() testnet.Addrs { return testnet.Addrs{netip.MustParseAddr("172.30.0.60")} }

func jobsAddrs() testnet.Addrs { return testnet.Addrs{netip.MustParseAddr("172.30.0.70")} }

// state is the data of the manifests.
type state struct {
	nodeAddrs testnet.Addrs
	endpoints []endpoint // of default/web
	canary    [2]version
	cart      []endpoint
	slow      []endpoint
	lazy      []endpoint
	jobs      []endpoint
}

// version is an EndpointSlice of default/canary.
type version struct {
	weight    int
	endpoints []endpoint
}

// values are the names that the manifests have as "${...}", and their replacements.
func (s state) values() map[string]string {
	return map[string]string{
		"NODE": nodeName, "NODE_ADDRESSES": s.nodeAddresses(),
		"WEB_IPV4": webAddrs().V4().String(), "WEB_IPV6": webAddrs().V6().String(),
		"EMPTY_IPV4": emptyAddrs().V4().String(), "EMPTY_IPV6": emptyAddrs().V6().String(),
		"PORT": strconv.Itoa(servicePort), "POD_PORT": strconv.Itoa(podPort), "NODE_PORT": strconv.Itoa(nodePort),
		"ENDPOINTS_IPV4": endpointList(s.endpoints, testnet.Addrs.V4), "ENDPOINTS_IPV6": endpointList(s.endpoints,
			testnet.Addrs.V6),
		"CANARY_IPV4": canaryAddrs().V4().String(), "CART_IPV4": cartAddrs().V4().String(),
		"WEIGHT_V1": strconv.Itoa(s.canary[0].weight), "ENDPOINTS_V1": endpointList(s.canary[0].endpoints, testnet.Addrs.V4),
		"WEIGHT_V2": strconv.Itoa(s.canary[1].weight), "ENDPOINTS_V2": endpointList(s.canary[1].endpoints, testnet.Addrs.V4),
		"ENDPOINTS_CART": endpointList(s.cart, testnet.Addrs.V4), "ENDPOINTS_SLOW": endpointList(s.slow, testnet.Addrs.V4),
		"SLOW_IPV4": slowAddrs().V4().String(),
		"LAZY_IPV4": lazyAddrs().V4().String(), "ENDPOINTS_LAZY": endpointList(s.lazy, testnet.Addrs.V4),
		"JOBS_IPV4": jobsAddrs().V4().String(), "ENDPOINTS_JOBS": endpointList(s.jobs, testnet.Addrs.V4),
	}
}

func (s state) nodeAddresses() string {
	var b strings.Builder
	for _, a := range s.nodeAddrs {
		fmt.Fprintf(&b, "\n  - {type: InternalIP, address: %q}", a)
	}
	return b.String()
}

// endpointList lists the endpoints with their addresses of one family.
func endpointList(list []endpoint, family func(testnet.Addrs) netip.Addr) string {
	if len(list) == 0 {
		return " []"
	}
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "\n- addresses: [%q] # %s\n  nodeName: %s\n  conditions: {ready: %t, serving: true, terminating: %t}",
			family(e.Addrs), e.Name, nodeName, !e.Terminating, e.Terminating)
	}
	return b.String()
}

// endpoint is a pod as an EndpointSlice lists it. A terminating endpoint is no longer
// ready but still serves.
type endpoint struct {
	Name        string
	Addrs       testnet.Addrs
	Terminating bool
}

// writeManifests writes every manifest into the directory.
func writeManifests(templates fs.FS, dir string, s state) error {
	entries, err := fs.ReadDir(templates, "manifests")
	if err != nil {
		return fmt.Errorf("list manifests: %w", err)
	}
	for _, e := range entries {
		if err := writeManifest(templates, dir, e.Name(), s); err != nil {
			return err
		}
	}
	return nil
}

// writeManifest replaces one manifest as an operator should: by a rename, so that the
// proxy never reads half of it.
func writeManifest(templates fs.FS, dir, name string, s state) error {
	text, err := renderManifest(templates, name, s)
	if err != nil {
		return fmt.Errorf("render manifest %s: %w", name, err)
	}
	draft := filepath.Join(dir, "."+name+".new")
	if err := os.WriteFile(draft, text, 0o644); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := os.Rename(draft, filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("replace manifest: %w", err)
	}
	return nil
}

// renderManifest puts the values into a manifest. It does not use text/template, which
// calls methods by name. With it the linker keeps every exported method of the whole
// program, and the binary is half as large again.
func renderManifest(templates fs.FS, name string, s state) ([]byte, error) {
	text, err := fs.ReadFile(templates, "manifests/"+name)
	if err != nil {
		return nil, err
	}
	values := s.values()
	var unknown []string
	rendered := os.Expand(string(text), func(name string) string {
		value, known := values[name]
		if !known {
			unknown = append(unknown, name)
		}
		return value
	})
	if len(unknown) > 0 {
		return nil, fmt.Errorf("no value for %s", strings.Join(unknown, ", "))
	}
	return []byte(rendered), nil
}
