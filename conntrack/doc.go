// Package conntrack removes stale entries from the kernel's connection tracking table: entries that
// keep a connection away from its Service, or lead it to a removed endpoint. It decides which
// entries are stale and why, and removes them beside the syncs, at a bounded cost.
//
// Stale entries exist because nat rules see only the first packet of a connection.
// An entry from older rules sends all later packets the same way. [Index.Stale]
// decides, [Table] is the kernel's table, and [Cleaner] connects the two.
//
// [Sysctls] are the kernel's settings of connection tracking, and
// [FollowOccupancy] reports how full the table is.
//
// It speaks to the kernel itself (package nfnetlink) where github.com/ti-mo/conntrack would do, which makes the
// entries of its tests. To remove 2,000 of 200,000 entries, that library's dump and deletions take 17 times as long as
// a dump that the kernel filters and deletions in batches, and 319 MiB instead of 3.3 MiB
// (docs/internals/conntrack.md). Its single answers, Get and StatsGlobal of v0.6.0, did not return on Linux 6.18 with
// mdlayher/netlink v1.11.2, and its connection has no deadline. Here an answer that is lost is
// [nfnetlink.ErrUnanswered] at once, and Find shares the decoder of the dump.
//
// The package does not program nftables. It does not touch entries of other programs' DNAT, even at
// the address and port of a Service: of the entries that lead to no endpoint of their Service, it
// removes only those to a former endpoint. It does not log; it reports to its caller.
package conntrack
