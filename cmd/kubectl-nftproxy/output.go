package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/kubectl/pkg/cmd/get"

	"nftproxy/model/printable"
)

// The group of what the plugin prints as objects. The API server has no such kinds.
const apiVersion = "nftproxy.io/v1"

// output prints rows as kubectl get does, by the same flags.
type output struct{ flags *get.PrintFlags }

func (o *output) addFlags(cmd *cobra.Command) {
	o.flags = get.NewGetPrintFlags()
	o.flags.AddFlags(cmd)
	f := cmd.Flags()
	f.Lookup("output").Usage = "wide, json, yaml, name, jsonpath=..., custom-columns=... and the others of kubectl get"
	f.Lookup("no-headers").Usage = "print no column names"
	// These are about objects of the API server.
	for _, name := range []string{"show-managed-fields", "allow-missing-template-keys", "template", "sort-by",
		"show-labels", "show-kind", "label-columns"} {
		if g := f.Lookup(name); g != nil {
			g.Hidden = true
		}
	}
}

// forPrograms says that no table is wanted.
func (o *output) forPrograms() bool {
	return *o.flags.OutputFormat != "" && *o.flags.OutputFormat != "wide" || *o.flags.TemplateFlags.TemplateArgument != ""
}

// check refuses what no printer prints, before anything has been asked.
func (o *output) check() error {
	_, err := o.flags.ToPrinter()
	return err
}

// column is a column of a table of rows.
type column[R any] struct {
	header string
	wide   bool
	text   func(*R) string
}

// object is a row as kubectl's printers want it: with a name, and its fields beside.
type object struct {
	kind, namespace, name string
	fields                any
}

// printRows prints rows. as makes an object of one, for programs.
func printRows[R any](w io.Writer, o *output, columns []column[R], rows []R, as func(*R) object) error {
	printer, err := o.flags.ToPrinter()
	if err != nil {
		return err
	}
	if !o.forPrograms() {
		return printer.PrintObj(tableOf(columns, rows), w)
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
	for i := range rows {
		u, err := as(&rows[i]).unstructured()
		if err != nil {
			return err
		}
		list.Items = append(list.Items, *u)
	}
	return printer.PrintObj(list, w)
}

// printNext prints a row of many that come one after the other: an object of its own for programs, and a table without
// a header from the second one on.
func printNext[R any](w io.Writer, o *output, columns []column[R], row R, as func(*R) object) error {
	if !o.forPrograms() {
		err := printRows(w, o, columns, []R{row}, as)
		*o.flags.NoHeaders = true
		return err
	}
	printer, err := o.flags.ToPrinter()
	if err != nil {
		return err
	}
	u, err := as(&row).unstructured()
	if err != nil {
		return err
	}
	return printer.PrintObj(u, w)
}

func tableOf[R any](columns []column[R], rows []R) *metav1.Table {
	table := &metav1.Table{}
	for _, c := range columns {
		definition := metav1.TableColumnDefinition{Name: c.header, Type: "string"}
		if c.wide {
			definition.Priority = 1
		}
		table.ColumnDefinitions = append(table.ColumnDefinitions, definition)
	}
	for i := range rows {
		cells := make([]any, len(columns))
		for j, c := range columns {
			cells[j] = printable.Text(c.text(&rows[i]))
			if cells[j] == "" {
				cells[j] = "-"
			}
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: cells})
	}
	return table
}

// unstructured makes the object that kubectl's printers take.
func (o object) unstructured() (*unstructured.Unstructured, error) {
	text, err := json.Marshal(o.fields)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: map[string]any{}}
	// It reads whole numbers as such, which the printers want.
	if err := utiljson.Unmarshal(text, &u.Object); err != nil {
		return nil, fmt.Errorf("%s %s: %w", o.kind, o.name, err)
	}
	u.SetAPIVersion(apiVersion)
	u.SetKind(o.kind)
	u.SetName(o.name)
	if o.namespace != "" {
		u.SetNamespace(o.namespace)
	}
	return u, nil
}
