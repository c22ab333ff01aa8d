// Package conntrack promises that no entry of the kernel's connection tracking
// table keeps a connection away from its Service, or leads it to an endpoint that
// is gone. It decides which entries are stale and why, and removes them beside the
// syncs, at a bounded cost.
//
// Stale entries exist because nat rules see only the first packet of a connection.
// An entry that was made under older rules sends all later packets the same way,
// for as long as they come. [Index.Stale] decides, [Table] is the kernel's table,
// and [Cleaner] joins the two.
//
// [Sysctls] are the kernel's settings of connection tracking, and
// [FollowOccupancy] reports how full the table is.
//
// The package does not program nftables. It does not touch entries that other programs
// DNATed, even at the address and port of a Service: of the entries that lead to no
// endpoint of their Service, it removes those to a former endpoint. It does not log: the
// caller gets reports.
package conntrack
