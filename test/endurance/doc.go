// Package endurance tries the proxy at length: a million changes, thousands of restarts of a watch,
// days of a simulated clock, sleep, and the times of repair and restart. Its benchmarks and the long
// forms of its tests make the figures of docs/evidence/reliability.md.
//
// It does not ask whether the rules are right for packets: other tests do.
package endurance
