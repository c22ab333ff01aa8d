// Package refusals promises how many first packets the rules refuse or drop, by cause and by
// Service, at a cost that no flood of such packets raises. The kernel counts: each cause
// has a chain with counters, and each frontend that refuses or drops has an element with
// one. The package reads the counters now and then and adds them up over the time in
// which elements come and go.
//
// The package decides neither what is refused nor where it is counted (nft/ruleset does). It
// knows the Service for the causes whose packets meet an element of the Service. Unknown
// ports and unallocated addresses have a number for the node only.
package refusals
