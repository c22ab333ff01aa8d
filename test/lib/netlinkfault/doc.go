// Package netlinkfault promises faults of the kernel's netlink answers, for tests. A Wire
// stands between a socket of the proxy and the kernel. What the proxy encodes goes to the real
// kernel, and what the kernel answers comes back, but for the fault: a message that is
// refused, an answer that is lost, late, stale or cut short, a dump that stops.
//
// A refused message of a transaction reaches the kernel as one that it refuses itself. So the
// kernel goes on with the rest of the batch and aborts it, as with any other error. Only the
// errno is another one.
//
// The package does not decide which faults come where: the test does. Choose and Faults list what there
// is to try. It knows nothing of the
// proxy's packages.
package netlinkfault
