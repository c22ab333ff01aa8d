package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"nftproxy/model/printable"
)

// output is the value of --output, which is the same for all commands that print more than a line. The words are
// those of kubectl; a command without more columns prints the text for wide, too.
type output string

const (
	outputText output = "text"
	outputWide output = "wide"
	outputJSON output = "json"
	outputYAML output = "yaml"
)

const outputFlag = "output"

func (o *output) addFlag(cmd *cobra.Command) {
	*o = outputText
	cmd.Flags().VarP(o, outputFlag, "o", "text, wide, json or yaml")
}

func (o *output) String() string { return string(*o) }

func (o *output) Type() string { return "string" }

func (o *output) Set(word string) error {
	if !slices.Contains(flagValues()[outputFlag], word) {
		return unknownValue(outputFlag, word)
	}
	*o = output(word)
	return nil
}

// structured says that programs read the output, so that it has all there is.
func (o output) structured() bool { return o == outputJSON || o == outputYAML }

// print prints a document for programs, or calls text to print it for people.
func (o output) print(w io.Writer, document any, text func(io.Writer) error) error {
	const indent = "  "
	return o.write(w, document, indent, "", text)
}

// printNext prints one document of many: on a line of its own as JSON, behind a line of its own as YAML.
func (o output) printNext(w io.Writer, document any, text func(io.Writer) error) error {
	return o.write(w, document, "", "---\n", text)
}

// write prints a document. A character that does not print is an escape there: encoding/json leaves some that
// terminals obey as they are. The names in YAML are those of JSON.
func (o output) write(w io.Writer, document any, indent, separator string, text func(io.Writer) error) error {
	if !o.structured() {
		return text(w)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(document); err != nil {
		return err
	}
	printed := []byte(printable.JSON(b.String()))
	if o == outputYAML {
		converted, err := yaml.JSONToYAML(printed)
		if err != nil {
			return err
		}
		printed = append([]byte(separator), converted...)
	}
	_, err := w.Write(printed)
	return err
}

// printOptions are the flags of a command that prints rows.
type printOptions struct {
	output
	noHeaders bool
}

func (o *printOptions) addFlags(cmd *cobra.Command) {
	o.addFlag(cmd)
	f := cmd.Flags()
	f.Lookup(outputFlag).Usage = "text, wide (more columns), json or yaml"
	f.BoolVar(&o.noHeaders, "no-headers", false, "print no column names")
}

type column[R any] struct {
	header string
	// wide columns stand only in -o wide.
	wide bool
	// text returns the cell. It may hold names from a table or an API server: the
	// table prints characters that move a terminal's cursor as escapes.
	text func(*R) string
}

// printRows prints rows in the chosen output: as a table, or as the list, which holds the same rows for programs.
func printRows[R any](w io.Writer, o printOptions, columns []column[R], rows []R, list any) error {
	return o.print(w, list, func(w io.Writer) error { return writeTable(w, o, columns, rows) })
}

func writeTable[R any](w io.Writer, o printOptions, columns []column[R], rows []R) error {
	if o.output != outputWide {
		columns = slices.DeleteFunc(slices.Clone(columns), func(c column[R]) bool { return c.wide })
	}
	const padding = 3 // as kubectl
	t := tabwriter.NewWriter(w, 0, 0, padding, ' ', 0)
	cells := make([]string, len(columns))
	if !o.noHeaders && len(rows) > 0 {
		for i, c := range columns {
			cells[i] = c.header
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	for r := range rows {
		for i, c := range columns {
			cells[i] = cmp.Or(printable.Text(c.text(&rows[r])), "-")
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

func checkTableName(name string) error {
	if !isTableName(name) {
		return fmt.Errorf("--%stable: %q is not a valid table name: want 1 to %d letters, digits, '_' and '-', and a "+
			"letter first", ownPrefix, name, maxTableName)
	}
	return nil
}
