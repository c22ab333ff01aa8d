// Package nft promises nftables as data: a program of tables, sets, chains and
// typed statements, its text form in nft syntax, the batch that turns one
// program into another (Plan), a strict in-memory model of the kernel's tables
// and an interpreter that sends packets through it.
//
// It does not talk to a kernel (package nft/kernel does) and knows nothing of
// services (package nft/ruleset does). It is pure: no I/O, no clock.
//
// Nothing in it changes once it is built: a changed chain or part is a new
// value, an unchanged one keeps its pointer, and Plan looks only at what has
// another pointer than last time.
package nft
