package main

import (
	"fmt"
	"slices"
	"strings"
)

// nftMatrix is the table of all columns, in Markdown.
func nftMatrix(columns []nftColumn) string {
	var b strings.Builder
	row := func(first string, cell func(nftColumn) string) {
		fmt.Fprintf(&b, "| %s |", first)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", cell(c))
		}
		b.WriteByte('\n')
	}
	row("", func(c nftColumn) string { return fmt.Sprintf("nft %s (%s)", c.version, c.suite) })
	row("---", func(nftColumn) string { return "---" })
	for _, q := range questions() {
		row(q, func(c nftColumn) string { return c.answer(q) })
	}
	return b.String()
}

// answer is with how many tables it went well, and why not with the first of the others.
func (c nftColumn) answer(question string) string {
	all := c.outcomes[question]
	bad := slices.DeleteFunc(slices.Clone(all), func(o nftOutcome) bool { return o.err == nil })
	if len(bad) == 0 {
		if len(all) == 0 {
			return "" // it cannot list them
		}
		return fmt.Sprintf("all %d", len(all))
	}
	return fmt.Sprintf("%d of %d: `%s`", len(all)-len(bad), len(all), nftReason(bad[0].err))
}

// nftReason is the words of an nft error that say what went wrong.
func nftReason(err error) string {
	text := err.Error()
	for _, words := range []string{"signal: ", "Error: "} {
		if _, after, found := strings.Cut(text, words); found {
			text = after
			break
		}
	}
	text, _, _ = strings.Cut(text, "\n")
	return strings.NewReplacer("|", "\\|", "`", "'").Replace(strings.Trim(text, " :."))
}
