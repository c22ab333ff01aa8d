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
// key is a problem too, since a typo must not be silent. balanced says that one of them chooses a balance, and affinity
// that the Service has session affinity.
func options(m *metav1.ObjectMeta, affinity bool, p *problemList) (o service.Options, balanced bool) {
	labelled(m, p)
	if len(m.Annotations) == 0 {
		return o, false
	}
	for _, key := range slices.Sorted(maps.Keys(m.Annotations)) {
		name, ours := service.OptionKey(key)
		if !ours {
			balanced = setOther(&o, m, key, affinity) || balanced
			if p.full() {
				continue
			}
			if meant := service.MeantOption(key); meant != "" {
				p.addValue("metadata.annotations["+key+"]", beginning(m.Annotations[key]), "the key has no effect; did you mean "+
					meant+"?")
			}
			continue
		}
		if p.full() && !slices.Contains(slices.Collect(service.AllOptions()), name) {
			p.more++ // without the text, which would take most of the time
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

// setOther reads an annotation of another project that may mean what an option of ours means, unless the Service has
// that option's own annotation, too. balanced says that it chooses a balance.
func setOther(o *service.Options, m *metav1.ObjectMeta, key string, affinity bool) (balanced bool) {
	name, value, found := service.OtherOption(key, m.Annotations[key], affinity)
	if !found {
		return false
	}
	if own := service.OptionAnnotation(name); own != key {
		if _, given := m.Annotations[own]; given {
			return false
		}
	}
	return o.Set(name, value) == nil && name == "balance"
}

// labelled finds options that somebody has given as labels.
func labelled(m *metav1.ObjectMeta, p *problemList) {
	if len(m.Labels) == 0 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(m.Labels)) {
		meant := service.MeantOption(key)
		if name, ours := service.OptionKey(key); ours && slices.Contains(slices.Collect(service.AllOptions()), name) {
			meant = key
		}
		if meant != "" {
			p.addValue("metadata.labels["+key+"]", m.Labels[key], "a label has no effect; did you mean the annotation "+meant+
				"?")
		}
	}
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

// unserved says that a Service without a virtual address has no options. One that waits for its cluster IP has none
// yet.
func unserved(s *corev1.Service, p *problemList) {
	if s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone {
		return
	}
	options(&s.ObjectMeta, false, p) // for what is wrong with them
	for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
		name, ours := service.OptionKey(key)
		if !ours || new(service.Options).Set(name, s.Annotations[key]) != nil {
			continue
		}
		reason := "a headless Service or one of type ExternalName has no address for it: clients choose among its pods, or " +
			"follow the name, without nftproxy"
		if key == annotationPortRanges {
			reason = "a headless Service or one of type ExternalName has no address for ranges: clients reach its pods, or " +
				"the name, at any port"
		}
		p.addValue("metadata.annotations["+key+"]", beginning(s.Annotations[key]), reason)
	}
}

// beginning cuts the value of an annotation for a message: it may have 256 KiB.
func beginning(value string) string {
	const enough = 100
	if len(value) <= enough {
		return value
	}
	return strings.ToValidUTF8(value[:enough], "") + "..."
}
