package verify

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// serviceOf names the Service that an element belongs to; nothing if it belongs to none, or
// if that is unknown. A wanted element has the Service as its part. Any other tells by its
// comment, or by an element of a verdict map whose key its own begins with.
func (c *comparison) serviceOf(e nft.OwnedElement) string {
	if e.Part != nft.Unowned {
		return nameOf(e.Part)
	}
	if e.Comment != "" {
		return nameOf(ruleset.NameInComment(e.Comment).Service)
	}
	if c.owners == nil {
		c.owners = ownersOf(c.have)
	}
	for _, n := range c.keyLengths() {
		if n <= len(e.Key) {
			if comment := c.owners[e.Key[:n]]; comment != "" {
				return nameOf(ruleset.NameInComment(comment).Service)
			}
		}
	}
	return ""
}

// nameOf returns the name of a part, or that in a comment, if it is a Service's, which has a namespace.
func nameOf(part string) string {
	if strings.Contains(part, "/") {
		return part
	}
	return ""
}

// ownersOf returns the comments in all verdict maps by key.
func ownersOf(t *nft.Contents) map[nft.Value]string {
	owners := map[nft.Value]string{}
	for _, name := range slices.Sorted(maps.Keys(t.Sets)) {
		s := t.Sets[name]
		if !s.Set.Verdicts {
			continue
		}
		for key, e := range s.Elements {
			owners[key] = cmp.Or(owners[key], e.Comment)
		}
	}
	return owners
}

// keyLengths returns the lengths of the keys of verdict maps, in bytes, the longest first: an
// address with a port says more than a node port.
func (c *comparison) keyLengths() []int {
	var lengths []int
	for _, s := range c.have.Sets {
		if s.Set.Verdicts {
			lengths = append(lengths, s.Set.Key.Len(c.family))
		}
	}
	slices.Sort(lengths)
	lengths = slices.Compact(lengths)
	slices.Reverse(lengths)
	return lengths
}
