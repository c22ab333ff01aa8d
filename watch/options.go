package watch

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/service"
)

// options reads the annotations of a Service with the prefix service.OptionPrefix, in the order of their keys. An unknown
// key is a problem too, since a typo must not be silent.
func options(m *metav1.ObjectMeta, p *problemList) service.Options {
	var o service.Options
	if len(m.Annotations) == 0 {
		return o
	}
	for _, key := range slices.Sorted(maps.Keys(m.Annotations)) {
		name, ours := strings.CutPrefix(key, service.OptionPrefix)
		if !ours {
			continue
		}
		if err := o.Set(name, m.Annotations[key]); err != nil {
			p.addValue("metadata.annotations["+key+"]", beginning(m.Annotations[key]), err.Error())
		}
	}
	return o
}

// beginning cuts the value of an annotation for a message: it may have 256 KiB.
func beginning(value string) string {
	const enough = 100
	if len(value) <= enough {
		return value
	}
	return strings.ToValidUTF8(value[:enough], "") + "..."
}
