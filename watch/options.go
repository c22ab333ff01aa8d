package watch

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/service"
)

// options reads the annotations of a Service with the prefix service.OptionPrefix, in the order of their keys. An unknown
// key is a problem too, since a typo must not be silent. balanced says that one of them chooses a balance.
func options(m *metav1.ObjectMeta, p *problemList) (o service.Options, balanced bool) {
	if len(m.Annotations) == 0 {
		return o, false
	}
	for _, key := range slices.Sorted(maps.Keys(m.Annotations)) {
		name, ours := strings.CutPrefix(key, service.OptionPrefix)
		if !ours {
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

// withBalance returns the Service with the node's balance, unless it chooses its own. Session affinity keeps clients at their
// endpoints without it.
func (ix *index) withBalance(s *serviceObject) *serviceObject {
	if ix.options.Balance == service.ByRandom || s.balanced || s.bare.AffinityTimeout > 0 {
		return s
	}
	object, bare := *s, s.bare.Clone()
	bare.Options.Balance = ix.options.Balance
	object.bare, object.built = bare, false
	return &object
}

// beginning cuts the value of an annotation for a message: it may have 256 KiB.
func beginning(value string) string {
	const enough = 100
	if len(value) <= enough {
		return value
	}
	return strings.ToValidUTF8(value[:enough], "") + "..."
}
