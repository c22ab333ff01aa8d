package demo

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"nftproxy/internal/testnet"
)

//go:embed manifests
var embeddedManifests embed.FS

// endpointsFile is the manifest that changes when pods come and go.
const endpointsFile = "web-endpoints.yaml"

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

// state is what the manifests are made from.
type state struct {
	Node                    string
	NodeAddrs               testnet.Addrs
	Web, Empty              testnet.Addrs
	Port, PodPort, NodePort int
	AddressTypes            []string
	Endpoints               []endpoint
}

func newState(nodeAddrs testnet.Addrs, endpoints []endpoint) state {
	return state{
		Node: nodeName, NodeAddrs: nodeAddrs,
		Web: webAddrs(), Empty: emptyAddrs(),
		Port: servicePort, PodPort: podPort, NodePort: nodePort,
		AddressTypes: []string{"IPv4", "IPv6"},
		Endpoints:    endpoints,
	}
}

// endpoint is a pod as an EndpointSlice lists it. One that is terminating is
// not ready any more but still serves.
type endpoint struct {
	Name        string
	Addrs       testnet.Addrs
	Terminating bool
}

// Address is the endpoint's address in a slice of the given address type.
func (e endpoint) Address(addressType string) netip.Addr {
	if addressType == "IPv6" {
		return e.Addrs.V6()
	}
	return e.Addrs.V4()
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

// writeManifest replaces one manifest as an operator should: by a rename, so
// that nobody reads half of it.
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

func renderManifest(templates fs.FS, name string, s state) ([]byte, error) {
	t, err := template.New(name).Funcs(template.FuncMap{"lower": strings.ToLower}).ParseFS(templates, "manifests/"+name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, s); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
