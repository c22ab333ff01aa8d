// Command demo promises to show the proxy's main job to a person. It makes a node, pods
// and clients of network namespaces, runs the real nftproxy there on manifests, sends
// real traffic, and checks everything that it claims. It removes everything that it made,
// also after an interruption.
//
// The demo is a list of steps (scenario.go). Each step acts, checks the result and
// returns blocks of text; screen.go and block.go print them.
//
// Its durations are no benchmark (package bench has those). It touches neither the
// machine's own network nor its rules.
package main
