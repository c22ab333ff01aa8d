// Package privilege promises that the process keeps no capability but those that it names, in all its
// threads and for good: neither the process nor a program that it starts can have another one again.
//
// It gives up capabilities only. The user stays the same, and so does everything that this user owns.
package privilege
