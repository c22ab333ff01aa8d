// Package flowcost measures what it costs a node to learn of its Services' connections. It has only tests. TestCost
// compares the ways: messages of a rule with log, events of connection tracking, and dumps. TestEvents shows what
// each way does to other listeners of events. docs/evidence/flows.md has the figures.
package flowcost
