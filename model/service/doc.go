// Package service is the model: how the node should serve its Services, as plain values that never
// change once published. It decides which Service has which claim, and which endpoints get
// connections. Snapshots have a text form that Parse reads.
//
// The package knows neither Kubernetes' objects (package watch turns those into this
// model) nor nftables (package nft/ruleset turns this model into a program). It does no
// I/O and reads no clock.
package service
