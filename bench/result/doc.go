// Package result promises the figures of a run as data (the measured values, the machine, and whether the project's
// targets are met) and in a form for people: tables in a terminal, one for each question, and pictures, one for each
// claim about nftproxy.
//
// It measures nothing: tables and pictures have only what the report has.
//
// The 500 lines that draw are instead of gonum.org/v1/plot, the plotting library that is still maintained. It adds
// eight modules to go.mod. A trial of it cut off the title, since it wraps no text. It has one set of colours for light
// and dark pages, axes that say 1e+03, a legend in place of names behind the lines, and no description for those who do
// not see the picture.
package result
