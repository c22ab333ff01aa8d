// Package conntrack promises that no connection keeps missing its service, and
// none keeps going to an endpoint that has gone, because of what the kernel
// remembers of connections: it says which entries of the connection tracking
// table are stale and why, and removes them, beside the syncs and at a bounded
// cost.
//
// It is needed because nat rules see only the first packet of a connection: an
// entry that was made while other rules were in force keeps its packets on
// their way for as long as they come. [Index.Stale] decides, [Table] is the
// kernel, [Cleaner] joins the two.
//
// [Sysctls] are the kernel's settings of connection tracking, and
// [FollowOccupancy] says how full the table is.
//
// It does not program nftables, does not touch what others DNATed to addresses
// that are no service's, and does not log: what it did goes to a callback.
package conntrack
