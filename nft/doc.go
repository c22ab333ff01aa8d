// Package nft promises nftables as data. It has a program of tables, sets, chains and
// typed statements, its text in nft syntax, the batch that turns one program into
// another (Plan), a strict model of the kernel's tables, and an interpreter that sends
// packets through the model.
//
// It does not talk to a kernel (package nft/kernel does) and knows nothing of
// services (package nft/ruleset does). It is pure: no I/O, no clock.
//
// No value changes once it is built. A changed chain or part is a new value, and an
// unchanged one keeps its pointer. So Plan looks only at what has another pointer
// than last time.
package nft
