package nft

import (
	"maps"
	"slices"
	"strings"
)

// Model is tables as a kernel holds them: flat, without parts. Package nft/kernel returns the tables
// that it read in this form.
type Model struct {
	Tables map[TableID]*Contents
}

// Contents is one table of a Model.
type Contents struct {
	Table  TableID
	Sets   map[string]*SetContents
	Chains map[string]*Chain
	// Timeouts by name.
	Timeouts map[string]Timeout
}

// SetContents is one set or map with its elements by key.
type SetContents struct {
	Set      *Set
	Elements map[Value]Element
}

// Unknown stands for a rule, or the end of a rule, that the reader of a kernel's table does not
// recognise. No program contains it, so Plan rewrites a wanted chain that has it.
type Unknown struct{}

func (Unknown) statement() {}

// Text returns a comment, which nft ignores.
func (Unknown) Text(Family) string { return "# unknown" }

// NewModel returns a model without tables.
func NewModel() *Model { return &Model{map[TableID]*Contents{}} }

// NewContents returns a table without sets and chains.
func NewContents(id TableID) *Contents {
	return &Contents{id, map[string]*SetContents{}, map[string]*Chain{}, map[string]Timeout{}}
}

// Put replaces a table.
func (m *Model) Put(c *Contents) { m.Tables[c.Table] = c }

// Table returns the table's contents, or nil if there is no such table.
func (m *Model) Table(id TableID) *Contents { return m.Tables[id] }

// String returns the tables in the syntax that nft reads, sorted.
func (m *Model) String() string {
	var b strings.Builder
	for _, id := range slices.SortedFunc(maps.Keys(m.Tables), func(a, b TableID) int {
		return strings.Compare(a.String(), b.String())
	}) {
		m.Tables[id].writeText(&b)
	}
	return b.String()
}
