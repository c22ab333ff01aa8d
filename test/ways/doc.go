// Package ways promises that one script of changes is carried out in different ways on
// tables: in another order, in other transactions, with some steps together, with restarts,
// with errors. All ways should end in the same tables.
//
// The package compiles and plans as the loop does, but it has no goroutines and a clock of
// its own. It makes no assertion.
package ways
