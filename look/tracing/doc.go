// Package tracing describes what the kernel's events tell of each traced packet: its way
// through hooks, chains and rules, in words, with the Service that it goes to.
//
// An Assembler is told the events, and the names of rules, hooks, interfaces and Services, and
// reads nothing itself; a Trace reads them from this node. The clock only says when a packet has come to its end, since
// the kernel does not.
package tracing
