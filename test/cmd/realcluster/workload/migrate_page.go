package workload

import (
	"fmt"
	"os"
	"strings"
)

// section is a section of the page: the scripts of a step, those of its check and
// those of its undoing.
type section struct{ do, check, undo []string }

// page has the sections of a page by their titles.
type page map[string]*section

func readPage(path string) (page, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the steps: %w", err)
	}
	return parsePage(string(text)), nil
}

// parsePage collects the blocks of shell commands. A block belongs to the last item
// "Check." or "Undo." of its section, and to the step itself before these.
func parsePage(text string) page {
	p := page{}
	s := &section{}
	into := &s.do
	fence := "" // the indentation of the block that is open, and the fence
	var block []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimLeft(line, " ")
		indentation := line[:len(line)-len(trimmed)]
		switch {
		case fence != "" && line == fence:
			*into = append(*into, strings.Join(block, "\n"))
			fence, block = "", nil
		case fence != "":
			block = append(block, strings.TrimPrefix(line, strings.TrimSuffix(fence, "```")))
		case trimmed == "```sh":
			fence = indentation + "```"
		case strings.HasPrefix(line, "## "):
			s = &section{}
			into = &s.do
			p[strings.TrimPrefix(line, "## ")] = s
		case strings.HasPrefix(line, "- **Check.**"):
			into = &s.check
		case strings.HasPrefix(line, "- **Undo.**"):
			into = &s.undo
		}
	}
	return p
}

// section finds a section by the beginning of its title.
func (p page) section(beginning string) (*section, error) {
	for title, s := range p {
		if strings.HasPrefix(title, beginning) {
			return s, nil
		}
	}
	return nil, fmt.Errorf("the page has no section %q", beginning)
}
