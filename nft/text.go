package nft

import (
	"fmt"
	"strings"
)

// Text is the rule in nft syntax.
func (r Rule) Text(f Family) string {
	words := make([]string, len(r))
	for i, s := range r {
		words[i] = s.Text(f)
	}
	return strings.Join(words, " ")
}

// String is the hook's specification in nft syntax, without policy.
func (h Hook) String() string {
	return fmt.Sprintf("type nat hook %s priority %d", h.Name, h.Priority)
}

func (s *Set) keyword() string {
	if s.Verdicts || len(s.Data) > 0 {
		return "map"
	}
	return "set"
}

func (s *Set) declaration(f Family) string {
	switch {
	case s.Verdicts:
		return fmt.Sprintf("typeof %s : verdict", s.Key.Text(f))
	case len(s.Data) > 0:
		return fmt.Sprintf("typeof %s : %s", s.Key.Text(f), s.Data.Text(f))
	}
	return "typeof " + s.Key.Text(f)
}

// text is the element as it stands between a set's braces.
func (e Element) text(f Family, s *Set) string {
	var b strings.Builder
	b.WriteString(s.Key.Format(f, e.Key))
	if e.Comment != "" {
		fmt.Fprintf(&b, " comment %q", e.Comment)
	}
	switch {
	case s.Verdicts:
		fmt.Fprintf(&b, " : %s", e.Verdict)
	case len(s.Data) > 0:
		fmt.Fprintf(&b, " : %s", s.Data.Format(f, e.Data))
	}
	return b.String()
}
