// Package proxy is the loop: the kernel has the program of the newest snapshot, soon after it comes and at most once
// per period. After each sync the loop calls its observers: health, metrics, logging and the conntrack clean-up.
//
// The package decides nothing about Services or nftables: it calls the compiler, the plan and the kernel in turn. It
// compares what the kernel holds with what is wanted, so that a first sync, a change, a restart and a repair are the
// same to it.
//
// It hands out snapshots, not their differences. An observer compares with the snapshot that it took last, which costs
// 1 to 3 us for a change among 3,000 to 30,000 Services, and few do so for each sync. That snapshot is not the same for
// all of them: most follow a family only while the program is in force there, conntrack, ejections and counters look
// when it is time to, and some begin again from nothing. So a first snapshot, a change and a family that failed for a
// while are the same to each.
package proxy
