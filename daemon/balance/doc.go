// Package balance has the endpoints of Services that ask for least connections share new connections by what they hold:
// it counts the connections of this node to them, and says which slots go from one to another. model/share has the law.
//
// One walk through connection tracking serves all Services. The CPU time of this package's work, and of the call that
// hands on its result, has a budget: a large table is counted less often. It does not bound what the syncs cost that
// follow.
package balance
