package main

import (
	"fmt"
	"os"
	"strings"
)

// section is a part of a page that this command writes, between two comments that readers do not see. People write the
// rest of the page, which stays as it is.
type section struct {
	// Name is what the part is called in the comments, such as "matrix of make test-kernels".
	Name string
	// Heading is the part's heading where the page does not have the part yet.
	Heading string
}

// Replace replaces the section on a page, or adds it at the page's end.
func (s section) Replace(file, text string) error {
	begin, end := fmt.Sprintf("<!-- the %s -->\n", s.Name), fmt.Sprintf("<!-- end of the %s -->\n", s.Name)
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(page), begin)
	_, after, ended := strings.Cut(rest, end)
	if found && !ended {
		return fmt.Errorf("%s has the begin of the %s and no end", file, s.Name)
	}
	if !found {
		before += "\n## " + s.Heading + "\n\n"
	}
	return os.WriteFile(file, []byte(before+begin+"\n"+text+"\n"+end+after), 0o644)
}
