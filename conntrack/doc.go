// Package conntrack promises that no connection keeps missing its service
// because of what the kernel remembered before the rules were in: it says which
// entries of the connection tracking table are stale and why, and removes them,
// beside the syncs and at a bounded cost.
//
// It is needed because nat rules see only the first packet of a connection: an
// entry made while a service address had no rule keeps its packets un-DNATed
// for as long as they come. [Index.Stale] decides, [Table] is the kernel,
// [Cleaner] joins the two.
//
// It does not program nftables, does not touch entries that were DNATed, and
// does not log: what it did goes to a callback.
package conntrack
