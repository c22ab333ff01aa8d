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
// The package does not program nftables. It does not touch entries of other programs' DNAT, even at
// the address and port of a Service: of the entries that lead to no endpoint of their Service, it
// removes only those to a former endpoint. It does not log; it reports to its caller.
package conntrack
