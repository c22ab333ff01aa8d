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

// The values of --output. Commands that print rows have all of them, as kubectl does.
const (
	outputText = "text"
	outputWide = "wide"
	outputJSON = "json"
	outputYAML = "yaml"
)

// printOptions are the flags of a command that prints rows.
type printOptions struct {
	output    string
	noHeaders bool
}

func (o *printOptions) addFlags(cmd *cobra.Command) {
	addOutput(cmd, &o.output, outputText, outputWide, outputJSON, outputYAML)
	f := cmd.Flags()
	f.Lookup("output").Usage = "text, wide (more columns), json or yaml"
	f.BoolVar(&o.noHeaders, "no-headers", false, "print no column names")
}

func (o *printOptions) check() error {
	return checkOutput(o.output, outputText, outputWide, outputJSON, outputYAML)
}

// structured says that programs read the output, so that it has all there is.
func (o *printOptions) structured() bool { return o.output == outputJSON || o.output == outputYAML }

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
	switch o.output {
	case outputJSON:
		return writeJSON(w, list)
	case outputYAML:
		return writeYAML(w, list)
	}
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

func checkOutput(output string, of ...string) error {
	if slices.Contains(of, output) {
		return nil
	}
	return notAmong("output", output, of)
}

// writeJSON prints a value as JSON. A character that does not print is an escape there:
// encoding/json leaves some that terminals obey as they are.
func writeJSON(w io.Writer, v any) error {
	text, err := jsonText(v)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

func jsonText(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return printable.JSON(b.String()), err
}

// writeYAML prints a value as YAML, with the names that it has in JSON. The library
// writes control characters as escapes.
func writeYAML(w io.Writer, v any) error {
	text, err := jsonText(v)
	if err != nil {
		return err
	}
	b, err := yaml.JSONToYAML([]byte(text))
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

func checkTableName(name string) error {
	if !isTableName(name) {
		return fmt.Errorf("--%stable: %q is not a valid table name: want 1 to %d letters, digits, '_' and '-', and a "+
			"letter first", ownPrefix, name, maxTableName)
	}
	return nil
}
