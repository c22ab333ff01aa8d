// Package service is the model: how the node should serve its Services, as plain values that never
// change once published: Services, what they ask for by annotations, what each of them gets, and why not more.
// Snapshots have a text form that Parse reads.
//
// Who has which address is decided in model/claims, who serves in model/share, and model/snapshots makes the
// snapshots. The package knows neither Kubernetes' objects (package watch turns those into this
// model) nor nftables (package nft/ruleset turns this model into a program). It does no
// I/O and reads no clock.
package service
