package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"nftproxy/daemon/kubeproxyconfig"
	"nftproxy/model/service"
	"nftproxy/watch"
)

// claimOptions are the flags that say which Services this proxy serves, and that limit
// their claims.
type claimOptions struct {
	featureGates      []string
	ignoreExternalIPs bool     // by featureGates
	withoutEffect     []string // of featureGates
	proxyName         string
	maxElements       int
	maxAffinityPorts  int
	maxSourceLists    int
	protectedPorts    []string
	ports             []uint16 // of protectedPorts
}

func (o *claimOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.featureGates, "feature-gates", nil, "feature gates of kube-proxy, as NAME=true or NAME=false; with "+kubeproxyconfig.GateExternalIPs+"=false, run ignores spec.externalIPs and writes an event for each Service that has some; the other gates have no effect")
	f.StringVar(&o.proxyName, ownPrefix+"service-proxy-name", "", "serve the Services whose label service.kubernetes.io/service-proxy-name has this value, and no others, beside a proxy that serves those without the label")
	f.IntVar(&o.maxElements, ownPrefix+"max-service-elements", service.DefaultMaxElements, "maximum number of elements that one Service may have in the node's tables: (addresses and node ports) x ports x endpoints; run leaves out the rest, externalIPs first")
	f.IntVar(&o.maxAffinityPorts, ownPrefix+"max-affinity-ports", service.DefaultMaxAffinityPorts, "maximum number of Service ports with session affinity on this node, and a quarter of it in one namespace; the oldest Services have it, run serves the others without it")
	f.IntVar(&o.maxSourceLists, ownPrefix+"max-source-lists", service.DefaultMaxSourceLists, "maximum number of different lists of loadBalancerSourceRanges on this node, and a quarter of it in one namespace; those of the oldest Services count, and the load balancer's addresses of the others let in no client")
	f.StringSliceVar(&o.protectedPorts, ownPrefix+"protected-node-ports", []string{"22"}, "TCP ports of the node that no node port can take, and on its own addresses no externalIP or load balancer's address, besides the ports of the kubelet, the API server and the proxy; empty for none")
}

func (o *claimOptions) parse() error {
	if err := o.parseGates(); err != nil {
		return err
	}
	if o.maxElements < 1 {
		return fmt.Errorf("--nftproxy-max-service-elements: %d: want 1 or more; use a large number for no limit", o.maxElements)
	}
	if o.maxAffinityPorts < 1 {
		return fmt.Errorf("--nftproxy-max-affinity-ports: %d: want 1 or more; use a large number for no limit", o.maxAffinityPorts)
	}
	if o.maxSourceLists < 1 {
		return fmt.Errorf("--nftproxy-max-source-lists: %d: want 1 or more; use a large number for no limit", o.maxSourceLists)
	}
	if problems := validation.IsValidLabelValue(o.proxyName); len(problems) > 0 {
		return fmt.Errorf("--%sservice-proxy-name: %q is not the value of a label: %s", ownPrefix, o.proxyName, strings.Join(problems, "; "))
	}
	o.ports = nil
	for _, text := range o.protectedPorts {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("--nftproxy-protected-node-ports: %q: want a port, 1 to 65535", text)
		}
		o.ports = append(o.ports, uint16(port))
	}
	return nil
}

// parseGates reads --feature-gates. Of a gate that is given twice the last value
// counts, as with kube-proxy.
func (o *claimOptions) parseGates() error {
	o.ignoreExternalIPs, o.withoutEffect = false, nil
	for _, word := range o.featureGates {
		word = strings.TrimSpace(word)
		name, value, _ := strings.Cut(word, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		switch {
		case err != nil:
			return fmt.Errorf("--feature-gates: %q: want NAME=true or NAME=false", word)
		case strings.TrimSpace(name) == kubeproxyconfig.GateExternalIPs:
			o.ignoreExternalIPs = !on
		default:
			o.withoutEffect = append(o.withoutEffect, word)
		}
	}
	return nil
}

// ownServers returns the addresses of the proxy's own servers, by server.
func ownServers(metrics, health, probe string) map[string]string {
	return map[string]string{"nftproxy's metrics": metrics, "nftproxy's health server": health, "nftproxy's probe server": probe}
}

// watchOptions returns the flags as a watcher's options. servers has the addresses
// of the proxy's own servers; an empty address stands for a server that is off.
func (o *claimOptions) watchOptions(servers map[string]string) watch.Options {
	w := watch.Options{ProxyName: o.proxyName, IgnoreExternalIPs: o.ignoreExternalIPs, MaxElements: o.maxElements, MaxAffinityPorts: o.maxAffinityPorts, MaxSourceLists: o.maxSourceLists}
	for _, port := range o.ports {
		w.OwnPorts = append(w.OwnPorts, watch.OwnPort{Port: port, Whose: fmt.Sprintf("the node itself (--nftproxy-protected-node-ports=%d)", port)})
	}
	for whose, address := range servers {
		// The server itself reports an address that it cannot listen on.
		at, err := net.ResolveTCPAddr("tcp", address)
		if address == "" || err != nil || at.Port == 0 {
			continue
		}
		own := watch.OwnPort{Port: uint16(at.Port), Whose: whose}
		if a, ok := netip.AddrFromSlice(at.IP); ok && !a.Unmap().IsUnspecified() {
			own.Addr = a.Unmap()
		}
		w.OwnPorts = append(w.OwnPorts, own)
	}
	return w
}
