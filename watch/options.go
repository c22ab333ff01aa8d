package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/service"
)

// options reads the annotations of a Service that are options, in the order of their keys. An unknown
// key is a problem too, since a typo must not be silent. balanced says that one of them chooses a balance.
func options(m *metav1.ObjectMeta, p *problemList) (o service.Options, balanced bool) {
	if len(m.Annotations) == 0 {
		return o, false
	}
	for _, key := range slices.Sorted(maps.Keys(m.Annotations)) {
		name, ours := service.OptionKey(key)
		if !ours {
			if meant := service.MeantOption(key); meant != "" {
				p.addValue("metadata.annotations["+key+"]", beginning(m.Annotations[key]), "the key has no effect; did you mean "+
					meant+"?")
			}
			continue
		}
		if err := o.Set(name, m.Annotations[key]); err != nil {
			p.addValue("metadata.annotations["+key+"]", beginning(m.Annotations[key]), err.Error())
			continue
		}
		balanced = balanced || name == "balance"
	}
	return o, balanced
}

// withBalance returns the Service with the node's balance, unless it chooses its own. Session affinity keeps clients at
// their endpoints without it.
func (ix *index) withBalance(s *serviceObject) *serviceObject {
	if ix.options.Balance == service.ByRandom || s.balanced || s.bare.AffinityTimeout > 0 {
		return s
	}
	return s.edited(func(bare *service.Service) { bare.Options.Balance = ix.options.Balance })
}

// withTimeouts returns the Service without its time-outs if the kernel cannot give them, and says so.
func (ix *index) withTimeouts(s *serviceObject) *serviceObject {
	o := &s.bare.Options
	if ix.options.TryTimeouts == nil || o.TCPTimeouts == (service.Timeouts{}) && o.UDPTimeouts == (service.Timeouts{}) {
		return s
	}
	err := ix.options.TryTimeouts()
	if err == nil {
		return s
	}
	var problems []Problem
	for key, value := range o.All() {
		if key == service.TCPTimeoutKey || key == service.UDPTimeoutsKey {
			problems = append(problems, Problem{Object: s.object(), Field: "metadata.annotations[" +
				service.OptionAnnotation(key) + "]", Err: &ValueError{
				value, fmt.Sprintf("this node's kernel gives no time-outs to single connections (it needs "+
					"CONFIG_NF_CONNTRACK_TIMEOUT); the node's are in force: %v", err),
			}})
		}
	}
	return s.edited(func(bare *service.Service) {
		bare.Options.TCPTimeouts, bare.Options.UDPTimeouts = service.Timeouts{}, service.Timeouts{}
	}, problems...)
}

// annotationPortRanges is the key of service.Options.PortRanges.
const annotationPortRanges = service.OptionPrefix + "port-ranges"

// setRanges gives the service its ports that are ranges, or says why it has none, and where.
func setRanges(bare *service.Service, m *metav1.ObjectMeta, p *problemList) {
	bare.SetRangePorts()
	field, value := "metadata.annotations["+annotationPortRanges+"]", beginning(m.Annotations[annotationPortRanges])
	if why := bare.RangesRefused(); why != "" {
		p.addValue(field, value, why)
	}
}

// unservedRanges says that a Service without a virtual address has no ranges. One that waits for its cluster IP has
// none yet.
func unservedRanges(s *corev1.Service, p *problemList) {
	value, asks := s.Annotations[annotationPortRanges]
	if !asks || s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone {
		return
	}
	p.addValue("metadata.annotations["+annotationPortRanges+"]", beginning(value), "a headless Service or one of type "+
		"ExternalName has no address for ranges: clients reach its pods, or the name, at any port")
}

// beginning cuts the value of an annotation for a message: it may have 256 KiB.
func beginning(value string) string {
	const enough = 100
	if len(value) <= enough {
		return value
	}
	return strings.ToValidUTF8(value[:enough], "") + "..."
}
