// Package userns lets an ordinary user make network namespaces: it runs the
// program again as root of a user namespace of its own.
//
// It grants nothing outside that namespace: no access to the network
// namespace, files or devices of the machine.
package userns

import "errors"

// Reexec makes sure that the program may create network namespaces. If it may,
// Reexec returns done=false at once. If not, it runs the same executable with
// the same arguments, environment and standard streams in new user, network
// and mount namespaces, passes SIGINT, SIGTERM and SIGHUP on to it, waits, and
// returns done=true and its exit code; the caller then exits with that code.
// Call it first thing, before goroutines and files are made.
func Reexec() (code int, done bool, err error) { return 0, false, errors.ErrUnsupported }
