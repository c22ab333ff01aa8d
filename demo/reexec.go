package demo

import "nftproxy/test/testnet/userns"

// Reexec makes sure that the process may make network namespaces. An ordinary
// user's process runs itself once more in a user namespace: then done is true,
// and code is what that run exited with. Call it before anything else.
func Reexec() (code int, done bool, err error) { return userns.Reexec() }
