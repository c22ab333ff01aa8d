// Package demo promises the proxy's main job in front of a person's eyes: it
// makes a node, pods and clients out of network namespaces, runs the real
// nftproxy there on manifests, sends real traffic, and checks whatever it
// claims. It removes all that it made, also when it is interrupted.
//
// It is a list of steps (scenario.go); each does something, checks it and
// returns what there is to see. How that looks is apart (screen.go, block.go).
//
// It measures nothing that would hold elsewhere (package bench does), and it
// touches neither the machine's own network nor its rules.
package demo
