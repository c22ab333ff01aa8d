// Package service promises the model: what should be true of the node's
// services, as plain values that never change once published, with a text form
// that can be read and parsed back.
//
// It knows neither Kubernetes' objects (package watch turns those into this
// model) nor nftables (package nft/ruleset turns this model into a program).
// It does no I/O and reads no clock.
package service
