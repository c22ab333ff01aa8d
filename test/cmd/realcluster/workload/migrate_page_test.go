package workload

import (
	"reflect"
	"testing"
)

func TestParsePage(t *testing.T) {
	p := parsePage("intro\n\n```sh\nbefore\n```\n## One: first\n\n```sh\na\nb \\\n  c\n```\n\n```\nan answer\n```\n1. " +
		"An item:\n\n   ```sh\n   d\n     e\n   ```\n" +
		"- **Check.** Look:\n\n  ```sh\n  look\n  ```\n- **Undo.** Go back.\n\n  ```sh\n  back\n  ```\n## " +
		"Two\n\n```sh\nz\n```\n")
	want := page{
		"One: first": {do: []string{"a\nb \\\n  c", "d\n  e"}, check: []string{"look"}, undo: []string{"back"}},
		"Two":        {do: []string{"z"}},
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got:")
		for title, s := range p {
			t.Errorf("%q: %q", title, *s)
		}
	}
	if _, err := p.section("Three"); err == nil {
		t.Error("a section that is not there was found")
	}
}

// TestPageHasSteps: the page has the commands that Run takes from it.
func TestPageHasSteps(t *testing.T) {
	p, err := readPage("../../../../" + pagePath)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps() {
		if s.section == "" {
			continue
		}
		section, err := p.section(s.section)
		if err != nil {
			t.Error(err)
		} else if len(section.do) == 0 {
			t.Errorf("the section %q has no command", s.section)
		}
	}
}
