// Package watchers promises what the watches of nodes cost: bytes and CPU time, of a node and of the API server, at the
// start, for a change, at rest and when the API server comes back. It measures with several numbers of real watchers on a
// real API server, and draws a line through them.
//
// A watcher is the part of nftproxy that follows the API server, in a process with others. It has a connection of its own,
// as that of a node. The package writes no rules.
package watchers
