package ruleset

import (
	"strconv"
	"strings"

	"nftproxy/nft"
)

// Layout is the number of the layout of the tables that this version writes. A change to what
// ReadBack must understand increases it. The name of an empty chain has it, "layout-1": the kernel
// cannot replace the comment of a table that exists, and a chain is replaced in a transaction.
const Layout = 1

const layoutPrefix = "layout-"

// LayoutOf returns the number of the layout of a table. It is 0 for one of a version that wrote no
// number.
func LayoutOf(c *nft.Contents) int {
	newest := 0
	for name := range c.Chains {
		if text, ok := strings.CutPrefix(name, layoutPrefix); ok {
			if n, err := strconv.Atoi(text); err == nil && n > newest {
				newest = n
			}
		}
	}
	return newest
}

// Readable reports whether ReadBack understands the table: its layout is this version's or the one
// before. The sync that finds another layout writes the rules of this version in one transaction
// like any other change, and open connections go on. Only what the tables tell of an earlier run is
// lost: which Services were served, and so which flows became stale while no nftproxy ran.
func Readable(c *nft.Contents) bool {
	n := LayoutOf(c)
	return n == Layout || n == Layout-1
}
