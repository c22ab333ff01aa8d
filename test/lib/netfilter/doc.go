// Package netfilter is the tests' own way to the kernel's netfilter, past the code of the proxy: which features it has,
// when an address enters or leaves nftables, a full table of connections, and the command nft, which it installs where
// that is missing and permitted. So a test that skips itself for want of a feature, or measures the proxy, does not
// believe the code that it is about.
//
// It does not say what a transaction did.
package netfilter
