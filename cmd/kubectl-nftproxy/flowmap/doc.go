// Package flowmap says who talks to whom through Services: it joins what nodes remember of a sample of their
// connections (nftproxy flows), groups clients and endpoints by workload, and draws the result in DOT and SVG. Counts
// are estimates: each flow stands for as many connections as its weight says. What is kept and what is drawn has a
// bound, and what a bound leaves out has a note.
//
// It asks nobody, and knows names only from its caller. The layout of the picture is its own, in three columns, and
// github.com/ajstarks/svgo writes it. Layouts of libraries cost more than the picture is worth, on Linux and amd64:
//
//   - go-graphviz 0.2.10 (Graphviz as WebAssembly) makes a program 7.1 MB larger than svgo's 0.4 MB. It compiles
//     Graphviz when the program starts, for every command: 1.8 s the first time, and 0.2 s later with machine code from
//     a folder of a fixed name in the folder for temporary files, which another user of the computer can make first.
//   - d2 0.7.2 makes it 24 MB larger: its layout is a JavaScript program with an interpreter for it.
//
// They are there for whoever wants another layout: DOT goes into Graphviz.
package flowmap
