// Package check has checks that tests of several packages share: how a model differs from a program, whether one script
// of changes ends in the same tables in whatever way it is carried out (another order, other transactions, some steps
// together, restarts, errors), what a page of metrics says beside its values, and how much memory one input may take.
// It also runs a test for each txtar file.
//
// It compares values and text, compiles and plans as the loop does, and has neither goroutines nor a kernel.
package check
