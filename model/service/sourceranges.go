package service

import (
	"fmt"
	"net/netip"
	"strings"
)

// MaxSourceRanges is the greatest number of ranges that the annotation source-ranges may have.
const MaxSourceRanges = 1000

// noSources is the value of the annotation that lets in nobody.
const noSources = "none"

// setSourceRanges reads the annotation: ranges with commas between them, or noSources. Whoever writes it wants to keep
// others out. So what cannot be used admits nobody, and the rest of the list holds.
func setSourceRanges(o *Options, value string) error {
	if strings.TrimSpace(value) == noSources {
		o.SourceRanges = NewSources(nil)
		return nil
	}
	var ranges []netip.Prefix
	given, bad, first := 0, 0, ""
	for text := range strings.SplitSeq(value, ",") {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		given++
		if given > MaxSourceRanges {
			continue
		}
		r, err := netip.ParsePrefix(text)
		if err != nil || r.Addr().Is4In6() {
			if bad++; first == "" {
				first = text
			}
			continue
		}
		ranges = append(ranges, r)
	}
	o.SourceRanges = NewSources(ranges)
	const want = `want "none", or ranges such as 192.0.2.0/24 or 2001:db8::/32 with commas between`
	switch {
	case given == 0:
		return fmt.Errorf("%s; no client outside is admitted", want)
	case given > MaxSourceRanges:
		return fmt.Errorf("%d ranges, of which the first %d count; the others admit no client", given, MaxSourceRanges)
	case bad > 0:
		return fmt.Errorf("%s; %d of %d cannot be used, and admit no client, the first is %.50q", want, bad, given, first)
	}
	return nil
}

// text returns the ranges as setSourceRanges reads them, empty where all sources are admitted.
func (s *Sources) text() string {
	switch {
	case s == nil:
		return ""
	case len(s.ranges) == 0:
		return noSources
	}
	list := make([]string, len(s.ranges))
	for i, r := range s.ranges {
		list[i] = r.String()
	}
	return strings.Join(list, ",")
}
