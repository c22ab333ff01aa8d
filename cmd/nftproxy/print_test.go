package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// printedRow is a row of a table for tests.
type printedRow struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
	// The numbers are of the kinds that JSON cannot tell apart.
	Whole    int64   `json:"whole,omitempty"`
	Fraction float64 `json:"fraction,omitempty"`
}

func printed(t *testing.T, o printOptions, rows ...printedRow) string {
	t.Helper()
	columns := []column[printedRow]{
		{header: "NAME", text: func(r *printedRow) string { return r.Name }},
		{header: "DETAIL", wide: true, text: func(r *printedRow) string { return r.Detail }},
	}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := printRows(&b, o, columns, rows, map[string]any{"rows": rows}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPrintRows: one list of rows in each output.
func TestPrintRows(t *testing.T) {
	rows := []printedRow{{Name: "a", Detail: "first", Whole: 1_000_000_000_001, Fraction: 0.5}, {Name: "longer"}}
	for _, test := range []struct {
		o    printOptions
		want string
	}{
		{printOptions{output: outputText}, "NAME\na\nlonger\n"},
		{printOptions{output: outputWide}, "NAME     DETAIL\na        first\nlonger   -\n"},
		{printOptions{output: outputWide, noHeaders: true}, "a        first\nlonger   -\n"},
		{printOptions{output: outputYAML}, "rows:\n- detail: first\n  fraction: 0.5\n  name: a\n  whole: 1000000000001\n- detail: \"\"\n  name: longer\n"},
		{printOptions{output: outputJSON}, "{\n  \"rows\": [\n    {\n      \"name\": \"a\",\n      \"detail\": \"first\",\n      \"whole\": 1000000000001,\n      \"fraction\": 0.5\n    },\n    {\n      \"name\": \"longer\",\n      \"detail\": \"\"\n    }\n  ]\n}\n"},
	} {
		if diff := cmp.Diff(test.want, printed(t, test.o, rows...)); diff != "" {
			t.Errorf("-o %s (-want +got):\n%s", test.o.output, diff)
		}
	}
	if got := printed(t, printOptions{output: outputWide}); got != "" {
		t.Errorf("a table without rows is %q", got)
	}
}

// TestPrintHostileNames: no name from a table or an API server moves a terminal's cursor,
// changes its colours, or begins a new cell or line. Programs still read it unchanged.
func TestPrintHostileNames(t *testing.T) {
	hostile := "a\x1b[31mb\tc\nd\u009b2Je\u202egnp.exe\xfff\x7f\ufffd\\x1bö"
	for _, output := range []string{outputText, outputWide, outputJSON, outputYAML} {
		text := printed(t, printOptions{output: output, noHeaders: true}, printedRow{Name: hostile, Detail: hostile})
		for _, r := range text {
			// The library leaves marks of direction in YAML as they are.
			if r != '\n' && unicode.IsControl(r) || output != outputYAML && r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("-o %s prints %q:\n%q", output, r, text)
			}
		}
		var list struct{ Rows []printedRow }
		want := strings.ToValidUTF8(hostile, "\ufffd")
		switch output {
		case outputJSON:
			if err := json.Unmarshal([]byte(text), &list); err != nil || list.Rows[0].Name != want {
				t.Errorf("JSON comes back as %+v, %v", list, err)
			}
		case outputYAML:
			if err := yaml.Unmarshal([]byte(text), &list); err != nil || list.Rows[0].Name != want {
				t.Errorf("YAML comes back as %+v, %v", list, err)
			}
		default:
			if want := `a\x1b[31mb\tc\nd\u009b2Je\u202egnp.exe\xfff\x7f` + "\ufffd" + `\x1bö`; !strings.HasPrefix(text, want) || strings.Count(text, "\n") != 1 {
				t.Errorf("-o %s: %q, want %q", output, text, want)
			}
		}
	}
}
