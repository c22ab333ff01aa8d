package service

import (
	"slices"
	"strings"
)

// SourcesPolicyAnnotation holds Options.SourcesPolicy. It is Cilium's, and there is none of ours for it.
const SourcesPolicyAnnotation = "service.cilium.io/src-ranges-policy"

// SourcesPolicy says what the source ranges of the Service's specification are.
type SourcesPolicy uint8

// AllowSources lets in the sources in the ranges, as Kubernetes promises. DenySources keeps them out and lets in all
// others.
const (
	AllowSources SourcesPolicy = iota
	DenySources
)

// other is a value of another project's annotation that means what an option means.
type other struct {
	annotation, value string
	// anyCase says that the project reads the value in upper and lower case.
	anyCase bool
	// key and ours are what Options.Set reads.
	key, ours string
}

// allOthers lists them, sorted by annotation. Sources: pkg/annotation/k8s.go and pkg/loadbalancer/service.go of Cilium
// 1.20; felix/bpf/proxy/proxy.go of Calico (2026-08), and calico#13138, which is not merged in 2026-11.
//
// The others of Cilium say nothing that an option says: service.cilium.io/affinity is about endpoints of other
// clusters, type, node and node-selector leave out addresses, and forwarding-mode and proxy-delegation are about ways
// of packets that there are not here.
func allOthers() []other {
	return []other{
		{"lb.projectcalico.org/external-traffic-strategy", "maglev", true, "balance", "flow"},
		{"lb.projectcalico.org/no-endpoints-action", "Forward", true, "external-failover", "pass"},
		{"service.cilium.io/lb-algorithm", "maglev", false, "balance", "flow"},
		{"service.cilium.io/lb-algorithm", "random", false, "balance", "random"},
		{SourcesPolicyAnnotation, "deny", true, SourcesPolicyAnnotation, "deny"},
	}
}

// OtherAnnotations returns the annotations of other projects that OtherOption reads.
func OtherAnnotations() []string {
	var list []string
	for _, o := range allOthers() {
		list = append(list, o.annotation)
	}
	return slices.Compact(list)
}

// OtherOption returns the option that another project's annotation asks for, as Options.Set reads it, if it asks for
// one. Other values may mean something to that project, and are no mistakes. With session affinity a hash has the
// client's address only, as in Cilium.
func OtherOption(annotation, value string, affinity bool) (key, ours string, found bool) {
	for _, o := range allOthers() {
		if o.annotation != annotation || o.value != value && !(o.anyCase && strings.EqualFold(o.value, value)) {
			continue
		}
		if affinity && o.ours == ByFlow.String() {
			o.ours = ByClient.String()
		}
		return o.key, o.ours, true
	}
	return "", "", false
}
