// Package ruleset promises the service semantics: it compiles a snapshot of
// services into the nftables program that gives them to the node's traffic.
//
// It is pure: it knows no kernel, no Kubernetes object and no clock, and it
// does not decide what of a program has to be written (nft.Plan does). The same
// snapshot always gives the same program; a Compiler only gets there faster
// from the one before. ReadBack goes the other way, as far as that is possible.
//
// # The program
//
// Services are map elements; chains and rules are few and shared. A new
// connection is looked up in services (address, protocol, port), which sends
// it to the chain for its number of endpoints; that chain looks a random one up
// in endpoints and translates. Later packets of the connection see no rule at
// all, since every base chain is of type nat.
//
// Services with session affinity have chains that look their clients up first,
// in maps that the rules themselves fill once a connection is translated. What
// these maps hold is the kernel's and no part of the program; which of it has
// become stale the program says (AffinityMaps), and others have to remove it.
package ruleset
