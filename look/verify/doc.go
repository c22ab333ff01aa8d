// Package verify finds the difference between the program that should be in the kernel
// and the tables that were read from it, in words.
//
// The difference is what the proxy would repair: the batch that nft's plan makes of the
// tables. So the two cannot drift apart. Compare is pure; Node reads the objects and this node's tables. The package
// changes nothing. It cannot know which parts of the program the kernel has refused.
package verify
