// Package flows makes records of connections to Services from what the kernel tells about a sample of them: the first
// packet, the first answer, and the entry of connection tracking when somebody asks for it. A Tracker remembers a
// bounded number, and says when to ask for which entry.
//
// The package is pure: the caller has the clock, and asks the kernel. It does not choose the sample.
package flows
