// Package process handles what concerns the process itself: it keeps no capability but those that it names, its log
// is bounded, its garbage collector rests during the first load, it knows its CPU time, and it notices that the machine
// has slept.
//
// It knows nothing of Services or rules.
package process
