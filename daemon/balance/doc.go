// Package balance has the endpoints of Services that ask for least connections share new connections by what they hold:
// it counts the connections of this node to them, and says which slots go from one to another. model/share has the law.
//
// One walk through connection tracking serves all Services. All of the work has a budget of CPU time: a large table is
// counted less often.
package balance
