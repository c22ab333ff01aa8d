// Package flowmap says who talks to whom through Services: it joins what nodes remember of a sample of their connections
// (nftproxy flows), groups clients and endpoints by workload, and draws the result in DOT and SVG. Counts are estimates:
// each flow stands for as many connections as its weight says. What is kept and what is drawn has a bound, and what a
// bound leaves out has a note.
//
// It asks nobody, and knows names only from its caller. The layout of the picture is its own, with three columns, and
// github.com/ajstarks/svgo writes it. Layouts by libraries were measured: MEASURED
package flowmap
