// Package livetrace shows the way of real packets through the kernel's nftables rules: of
// the first packets of connections that one flow describes, for a bounded number and time.
//
// A small table of its own marks these packets for tracing, and the kernel reports each rule
// that they then meet, in the tables of all programs. The package changes no other table, and
// packets are not changed. Its table goes with the process, however that ends: the kernel
// removes it with the socket that owns it (Linux 5.12). On older kernels the mark ends with the
// trace's time, and the next trace or RemoveLeftOvers removes the table. The package does not
// know Services.
package livetrace
