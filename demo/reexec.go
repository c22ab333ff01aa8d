package demo

import "nftproxy/test/testnet/userns"

// Reexec makes sure that the process may make network namespaces. A process of an
// ordinary user runs itself once more in a user namespace. Then done is true, and code is
// the exit code of that run. Call it before anything else.
func Reexec() (code int, done bool, err error) { return userns.Reexec() }
