// Package ruleset implements the semantics of Services: it compiles a snapshot of Services into the
// nftables program that serves them on the node.
//
// The package is pure: it uses no kernel, no Kubernetes object and no clock. It does not decide
// which part of a program has to be written (nft.Plan does). The same snapshot always gives the
// same program; a Compiler only gets it faster, from the previous program. ReadBack goes the other
// way: from tables to a snapshot. Its comment says which facts are exact and which are guessed.
//
// # The program
//
// Services are map elements; there are few chains and rules, and Services share them. A frontend is
// one address with protocol and port, or one node port, of a Service. The rules look up a new
// connection by its frontend in the map services. The element leads to the chain for the service's
// number of endpoints. That chain picks a random one in the map endpoints and translates. Later
// packets of the connection meet no rule, since every base chain is of type nat.
//
// There are three ways to reach Services, called access: by address, by node port and by a range of ports. They work
// alike, and each has its own maps and chains.
//
// Services with session affinity have chains that first look for the client, in maps
// that the rules fill after translation. The kernel owns the elements of these maps; no
// program has them. AffinityMaps says which of them are stale. Package daemon/affinity
// removes those.
package ruleset
