// Package proxy is the loop: the kernel has the program of the newest
// snapshot, soon after it comes and at most once per period. After each sync the
// loop calls its observers: health, metrics, logging and the conntrack clean-up.
//
// The package decides nothing about Services or nftables: it calls the compiler,
// the plan and the kernel in turn. It compares what the kernel holds with what is
// wanted, so that a first sync, a change, a restart and a repair are the same to
// it.
package proxy
