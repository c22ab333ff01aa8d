// Package service promises the model: what should be true of the node's services, as
// plain values that never change once published. It decides which service has which
// claim, and which endpoints get connections. Snapshots have a text form that Parse
// reads.
//
// The package knows neither Kubernetes' objects (package watch turns those into this
// model) nor nftables (package nft/ruleset turns this model into a program). It does no
// I/O and reads no clock.
package service
