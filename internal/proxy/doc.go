// Package proxy promises the loop: the kernel follows the latest snapshot, at
// once when it changes and at most once per period when it changes often. It
// tells observers about every sync; health, metrics, logging and the conntrack
// clean-up hang there.
//
// It decides nothing about services or nftables: it calls the compiler, the
// plan and the kernel in turn, and is level-triggered, so that a first sync, a
// change, a restart and a repair are the same thing to it.
package proxy
