// Package ruleset promises the service semantics: it compiles a snapshot of
// services into the nftables program that serves them on the node.
//
// The package is pure: it knows no kernel, no Kubernetes object and no clock. It does
// not decide which part of a program has to be written (nft.Plan does). The same
// snapshot always gives the same program; a Compiler only gets there faster, from the
// program before. ReadBack goes the other way: from tables to a snapshot. Its comment
// says which facts are exact and which are guessed.
//
// # The program
//
// Services are map elements; chains and rules are few and shared. A frontend is one
// address with protocol and port, or one node port, of a service. A new connection is
// looked up by its frontend in the map services. The element leads to the chain for
// the service's number of endpoints. That chain picks a random one in the map endpoints
// and translates. Later packets of the connection see no rule at all, since every base
// chain is of type nat.
//
// There are two ways to reach services, called access: by address and by node port.
// Both work alike, each with maps and chains of its own.
//
// Services with session affinity have chains that first look for the client, in maps
// that the rules fill after translation. The kernel owns the elements of these maps; no
// program has them. AffinityMaps says which of them are stale. Package daemon/affinity
// removes those.
package ruleset
