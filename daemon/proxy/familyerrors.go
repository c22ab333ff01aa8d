package proxy

import (
	"fmt"
	"strings"

	"nftproxy/nft"
)

// FamilyErrors says why the program is not in force in some families. It is in
// force in the families that are not listed.
type FamilyErrors map[nft.Family]error

func (e FamilyErrors) Error() string {
	var words []string
	for _, f := range nft.Families() {
		if e[f] != nil {
			words = append(words, fmt.Sprintf("family %s: %v", f, e[f]))
		}
	}
	return strings.Join(words, "; ")
}

// Unwrap yields the errors in the order of the families.
func (e FamilyErrors) Unwrap() []error {
	var errs []error
	for _, f := range nft.Families() {
		if e[f] != nil {
			errs = append(errs, e[f])
		}
	}
	return errs
}
