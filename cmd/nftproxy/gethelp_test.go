package main

import (
	"encoding"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/look/inspect"
)

// described are what the help of a command has to name: the columns of its table, those that -o wide adds, and the
// type of its JSON.
type described struct {
	usual, wide []string
	list        any
}

// describe leaves out the columns that say which Service a row is about.
func describe[R any](columns []column[R], list any) described {
	d := described{list: list}
	for _, c := range columns {
		switch {
		case slices.Contains([]string{"NAMESPACE", "NAME", "SERVICE"}, c.header):
		case c.wide:
			d.wide = append(d.wide, c.header)
		default:
			d.usual = append(d.usual, c.header)
		}
	}
	return d
}

// TestGetHelp: the help of each command of get explains just the columns that the command prints, in their order, and
// names each field of its JSON.
func TestGetHelp(t *testing.T) {
	commands := map[string]described{
		"services":  describe(serviceColumns(), serviceList{}),
		"endpoints": describe(endpointColumns(), endpointList{}),
		"chains":    describe(chainColumns(), chainList{}),
		"affinity":  describe(clientColumns(), clientList{}),
	}
	explained := regexp.MustCompile(`(?m)^  ([A-Z][A-Z()-]+) `)
	capitals := regexp.MustCompile(`\b[A-Z][A-Z-]+\b`)
	for _, cmd := range newGetCommand().Commands() {
		want, known := commands[cmd.Name()]
		if !known {
			t.Errorf("get %s: this test does not know its columns", cmd.Name())
			continue
		}
		table, rest, _ := strings.Cut(cmd.Long, "\n-o wide adds ")
		wide, _, _ := strings.Cut(rest, "\n\n")
		_, fields, found := strings.Cut(rest, "\n-o json prints ")
		if !found {
			t.Errorf("get %s: the help lacks -o wide or -o json", cmd.Name())
		}
		var usual []string
		for _, match := range explained.FindAllStringSubmatch(table, -1) {
			usual = append(usual, match[1])
		}
		if diff := cmp.Diff(want.usual, usual); diff != "" {
			t.Errorf("get %s: the columns (-printed +explained):\n%s", cmd.Name(), diff)
		}
		added := slices.DeleteFunc(capitals.FindAllString(wide, -1), func(word string) bool { return word == "TCP" || word == "IP" })
		if diff := cmp.Diff(want.wide, added); diff != "" {
			t.Errorf("get %s: the columns of -o wide (-printed +explained):\n%s", cmd.Name(), diff)
		}
		for _, name := range jsonNames(reflect.TypeOf(want.list)) {
			if !regexp.MustCompile(`\b` + name + `\b`).MatchString(fields) {
				t.Errorf("get %s: the help does not name the JSON field %s", cmd.Name(), name)
			}
		}
	}
}

// TestConntrackListHelp: the help of conntrack list names each field of its JSON.
func TestConntrackListHelp(t *testing.T) {
	cmd, _, err := newConntrackCommand().Find([]string{"list"})
	if err != nil {
		t.Fatal(err)
	}
	_, fields, _ := strings.Cut(cmd.Long, "\n-o json prints ")
	for _, name := range jsonNames(reflect.TypeOf(inspect.FlowRow{})) {
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(fields) {
			t.Errorf("conntrack list: the help does not name the JSON field %s", name)
		}
	}
}

// jsonNames lists the names of the fields that a value of the type has in JSON, and those of the values in it.
func jsonNames(of reflect.Type) []string {
	switch of.Kind() {
	case reflect.Slice, reflect.Pointer:
		return jsonNames(of.Elem())
	case reflect.Struct:
	default:
		return nil
	}
	if of.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return nil
	}
	var names []string
	for _, field := range reflect.VisibleFields(of) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
			names = append(names, jsonNames(field.Type)...)
		}
	}
	return names
}
