package scenario_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/tools/txtar"

	"nftproxy/test/scenario"
)

// firstObjects and moreObjects are the numbers of lines of YAML that a page shows of its
// example, and of each change of it. Longer objects are only named: the link below the
// example leads to them.
const (
	firstObjects = 80
	moreObjects  = 10
)

// render is the text of a page: its first scenario as an example, and a line for each other
// one, which leads to the file.
func (p *page) render(scenarios map[string]*scenario.Scenario) (string, error) {
	var b strings.Builder
	b.WriteString(written)
	fmt.Fprintf(&b, "# %s\n\n%s The [list of pages](README.md) explains the tables.\n", p.title, p.lead)
	example, others := p.sections[0], p.sections[1:]
	archive, err := txtar.ParseFile(filepath.Join("testdata", example.scenario+".txtar"))
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "\n## %s\n\n", example.title)
	s := shown{Scenario: scenarios[example.scenario], archive: archive, b: &b}
	s.render()
	if len(others) == 0 {
		return b.String(), nil
	}
	b.WriteString("\n## Other cases\n\n")
	for _, sec := range others {
		s := shown{Scenario: scenarios[sec.scenario]}
		about, _ := s.about()
		fmt.Fprintf(&b, "- [%s](../../test/scenario/testdata/%s.txtar): %s\n", sec.title, sec.scenario, firstSentence(about))
	}
	return b.String(), nil
}

// firstSentence is the first sentence of a comment, on one line.
func firstSentence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if first, _, found := strings.Cut(text, ". "); found {
		return first + "."
	}
	return text
}

// anchor is the name that GitHub gives to a heading.
func anchor(heading string) string {
	heading = strings.ReplaceAll(strings.ToLower(heading), " ", "-")
	return regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(heading, "")
}

// shown is a scenario on a page.
type shown struct {
	*scenario.Scenario
	archive *txtar.Archive
	b       *strings.Builder
}

func (s *shown) printf(format string, args ...any) { fmt.Fprintf(s.b, format, args...) }

func (s *shown) render() {
	about, tests := s.about()
	s.printf("%s\n", about)
	if len(s.Flags) > 0 {
		s.printf("\nThe proxy runs with `%s`.\n", strings.Join(s.Flags, " "))
	}
	if s.OtherTables != "" {
		s.fold("Tables of others on the node", "", s.OtherTables)
	}
	for n := range s.Steps {
		s.step(n)
	}
	s.printf("\nObjects, packets and rules: [%s.txtar](../../test/scenario/testdata/%s.txtar).", s.Name, s.Name)
	if tests != "" {
		s.printf(" Tests of kube-proxy about the same: %s.", strings.TrimSuffix(tests, "."))
	}
	s.printf("\n")
}

// about returns the file's comment, and the tests of kube-proxy that it names.
func (s *shown) about() (text, tests string) {
	remark := regexp.MustCompile(`\s*\(kube-proxy: ([^)]*)\)`)
	if found := remark.FindStringSubmatch(s.About); found != nil {
		tests = strings.Join(strings.Fields(found[1]), " ")
	}
	return remark.ReplaceAllString(s.About, ""), tests
}

// raw is the text of one of a step's sections, and the comment that it begins
// with.
func (s *shown) raw(step int, name string) (comment, text string) {
	for _, f := range s.archive.Files {
		if f.Name != name && f.Name != fmt.Sprintf("%d/%s", step+1, name) || strings.Contains(f.Name, "/") != (step > 0) {
			continue
		}
		text = strings.TrimSpace(string(f.Data))
		var words []string
		for strings.HasPrefix(text, "#") {
			line, rest, _ := strings.Cut(text, "\n")
			words = append(words, strings.TrimSpace(strings.TrimPrefix(line, "#")))
			text = strings.TrimSpace(rest)
		}
		return strings.Join(words, " "), text
	}
	return "", ""
}

// step shows the objects or their change, and the outcomes of the flows.
func (s *shown) step(n int) {
	step := &s.Steps[n]
	var remarks []string
	comment, objects := s.raw(n, "objects.yaml")
	remarks = append(remarks, comment)
	comment, gone := s.raw(n, "delete")
	remarks = append(remarks, comment)
	comment, world := s.raw(n, "world")
	remarks = append(remarks, comment)
	if n > 0 {
		s.printf("\n### After %s\n", change(n, len(s.Steps)))
	}
	if said := strings.Join(nonEmpty(remarks), "; "); said != "" {
		s.printf("\n%s\n", sentence(said))
	}
	for line := range strings.Lines(world) {
		s.printf("\n%s\n", worldText(strings.TrimSpace(line)))
	}
	for line := range strings.Lines(gone) {
		s.printf("\n%s is deleted.\n", code(strings.TrimSpace(line)))
	}
	if objects != "" {
		s.objects(n, objects)
	}
	for _, name := range []string{"flows", "packets"} {
		if text := s.section(n, name); text != "" {
			s.table(step, text)
		}
	}
}

// objects shows the objects of a step, or names them.
func (s *shown) objects(n int, text string) {
	most := moreObjects
	if n == 0 {
		most = firstObjects
	}
	switch names := objectNames(s.Steps[n].Changed); {
	case strings.Count(text, "\n") < most:
		s.printf("\n```yaml\n%s\n```\n", text)
	case n > 0:
		s.printf("\nNew or changed: %s.\n", names)
	default:
		s.printf("\nObjects: %s.\n", names)
	}
}

// section is the text of one of a step's sections, comments included.
func (s *shown) section(step int, name string) string {
	comment, text := s.raw(step, name)
	if comment != "" {
		return "# " + comment + "\n" + text
	}
	return text
}

// change names a step after the first.
func change(n, steps int) string {
	if steps == 2 {
		return "the change"
	}
	return fmt.Sprintf("change %d", n)
}

func nonEmpty(list []string) []string {
	var rest []string
	for _, s := range list {
		if s != "" {
			rest = append(rest, s)
		}
	}
	return rest
}

// sentence begins with a capital and ends with a full stop.
func sentence(text string) string {
	return strings.ToUpper(text[:1]) + strings.TrimSuffix(text[1:], ".") + "."
}

func code(text string) string { return "`" + text + "`" }

// worldText says what a line of a section "world" says.
func worldText(line string) string {
	what, which, _ := strings.Cut(line, " ")
	switch what {
	case "address":
		return "The node has the address " + code(which) + "."
	case "no-address":
		return "The node does not have the address " + code(which) + " any more."
	case "network":
		return "The node has a route to " + code(which) + "."
	case "no-network":
		return "The node does not have the route to " + code(which) + " any more."
	case "closed":
		return "Nobody listens on the endpoint " + code(which) + "."
	}
	return "An API server would not take these objects. The proxy reads them from manifests."
}

// objectNames names up to three objects, Nodes and ServiceCIDRs of the fixture
// aside.
func objectNames(objects []scenario.Object) string {
	fixture := scenario.Fixture()
	var names []string
	for _, o := range objects {
		if !strings.Contains(fixture, strings.TrimSpace(o.YAML)) {
			names = append(names, o.String())
		}
	}
	if len(names) > 4 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// fold hides a text until the reader opens it.
func (s *shown) fold(title, language, text string) {
	s.printf("\n<details><summary>%s</summary>\n\n```%s\n%s\n```\n\n</details>\n", title, language,
		strings.TrimSpace(text))
}
