// Package tracing promises what the kernel's events tell of each traced packet: its way
// through hooks, chains and rules, in words, with the Service that it goes to.
//
// The package is told the events, and the names of rules, hooks, interfaces and Services. It
// reads nothing itself. Its clock only says when a packet has come to its end, since the
// kernel does not.
package tracing
