package nft

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Text returns the rule in nft syntax.
func (r Rule) Text(f Family) string {
	words := make([]string, len(r))
	for i, s := range r {
		words[i] = s.Text(f)
	}
	return strings.Join(words, " ")
}

// String returns the hook's specification in nft syntax, without policy.
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
	text := "typeof " + s.Key.Text(f)
	switch {
	case s.Verdicts:
		text += " : verdict"
	case len(s.Data) > 0:
		text += " : " + s.Data.Text(f)
	}
	if s.Size > 0 {
		text += fmt.Sprintf("; size %d", s.Size)
	}
	switch {
	case s.Interval:
		text += "; flags interval"
	case s.Dynamic:
		text += "; flags dynamic,timeout"
	}
	if s.Counter {
		text += "; counter"
	}
	return text
}

// keyText is the element's key in nft syntax.
func (e Element) keyText(f Family, s *Set) string {
	if s.Interval {
		return s.Key.FormatRange(f, e.Key, e.KeyEnd)
	}
	return s.Key.Format(f, e.Key)
}

// Text returns the element as it stands between the braces of its set s.
func (e Element) Text(f Family, s *Set) string {
	var b strings.Builder
	b.WriteString(e.keyText(f, s))
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

// writeText prints the table as nft -f reads it: objects, sets, then chains, each sorted by
// name, elements by key.
func (c *Contents) writeText(b *strings.Builder) {
	f := c.Table.Family
	fmt.Fprintf(b, "table %s {\n", c.Table)
	for _, name := range slices.Sorted(maps.Keys(c.Timeouts)) {
		fmt.Fprintf(b, "\tct timeout %s {\n\t\t%s\n\t}\n", name, strings.Join(c.Timeouts[name].declaration(f), "\n\t\t"))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sets)) {
		s := c.Sets[name]
		fmt.Fprintf(b, "\t%s %s {\n\t\t%s\n", s.Set.keyword(), name, s.Set.declaration(f))
		if len(s.Elements) > 0 {
			b.WriteString("\t\telements = {\n")
			for _, key := range slices.Sorted(maps.Keys(s.Elements)) {
				fmt.Fprintf(b, "\t\t\t%s,\n", s.Elements[key].Text(f, s.Set))
			}
			b.WriteString("\t\t}\n")
		}
		b.WriteString("\t}\n")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Chains)) {
		chain := c.Chains[name]
		fmt.Fprintf(b, "\tchain %s {\n", name)
		if chain.Hook != nil {
			fmt.Fprintf(b, "\t\t%s; policy accept;\n", chain.Hook)
		}
		for _, r := range chain.Rules {
			fmt.Fprintf(b, "\t\t%s\n", r.Text(f))
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
}

// String returns the program as nft -f reads it, with each pool's targets in the
// order of the program.
func (p *Program) String() string { return p.Model().String() }

// Model returns the tables that the program describes, as after a first sync.
func (p *Program) Model() *Model {
	m := NewModel()
	for _, f := range Families() {
		t := p.Table(f)
		c := NewContents(t.ID())
		for _, s := range t.Sets.All() {
			c.Sets[s.Name] = &SetContents{s, map[Value]Element{}}
		}
		for name, chain := range t.Chains.All() {
			c.Chains[name] = chain
		}
		for name, timeout := range t.Timeouts.All() {
			c.Timeouts[name] = timeout
		}
		for _, part := range t.Parts.All() {
			part.all(func(e Element) { c.Sets[e.Set].Elements[e.Key] = e })
		}
		for _, s := range c.Sets {
			s.Set = s.Set.declared(len(s.Elements))
		}
		m.Put(c)
	}
	return m
}
