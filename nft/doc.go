// Package nft represents nftables as data. It has programs of tables, sets, chains and typed
// statements, their text in nft syntax, the batch that turns one program into another (Plan), a
// model of the kernel's tables, and an interpreter that sends packets through the model.
//
// It does not talk to a kernel (package nft/kernel does) and does not know Services (package
// nft/ruleset does). It is pure: no I/O, no clock.
//
// No value changes once it is built. A changed chain or part is a new value, and an unchanged one
// keeps its pointer. So Plan looks only at values whose pointers have changed.
package nft
