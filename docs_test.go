package nftproxy_test

import (
	"go/ast"
	"go/parser"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocsNameWhatExists: each path, Go test, command and link on a page for
// people leads somewhere. The changelog is left out: it names what is gone.
func TestDocsNameWhatExists(t *testing.T) {
	tests := testsByFolder(t)
	all := map[string]bool{}
	for _, names := range tests {
		for _, name := range names {
			all[name] = true
		}
	}
	goTest := regexp.MustCompile(`^(Test|Benchmark|Fuzz)[A-Z]\w*`)
	for page, text := range docs(t) {
		for _, span := range codeSpans(text) {
			if name := goTest.FindString(span); name != "" && !all[name] {
				t.Errorf("%s names %s, which is no test", page, name)
			}
			for _, word := range strings.Fields(span) {
				if p, is := repositoryPath(word); is && !exists(p) {
					t.Errorf("%s names %s, which does not exist", page, p)
				}
			}
			checkPatterns(t, page, span, tests)
		}
		for _, link := range links(text) {
			if file, anchor, _ := strings.Cut(link, "#"); !exists(path.Join(path.Dir(page), file)) {
				t.Errorf("%s links to %s, which does not exist", page, link)
			} else if anchor != "" && !hasHeading(t, path.Join(path.Dir(page), file), path.Base(page), anchor) {
				t.Errorf("%s links to %s, which is no heading", page, link)
			}
		}
	}
}

// TestRunbooks: each alert leads to a heading of a page that exists, and docs/troubleshooting.md lists it.
func TestRunbooks(t *testing.T) {
	rules, err := os.ReadFile("deploy/alerts/nftproxy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	alerts := strings.Split(string(rules), "- alert: ")[1:]
	if len(alerts) == 0 {
		t.Fatal("there are no alerts")
	}
	url := regexp.MustCompile(`(?m)^ +runbook_url: (\S+)#(\S+)$`)
	for _, alert := range alerts {
		name, _, _ := strings.Cut(alert, "\n")
		if target := url.FindStringSubmatch(alert); target == nil {
			t.Errorf("%s has no runbook_url of a page and a heading", name)
		} else if !exists(target[1]) || !hasHeading(t, target[1], "", target[2]) {
			t.Errorf("%s: its runbook_url %s#%s is no heading of a page", name, target[1], target[2])
		}
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/troubleshooting.md does not list the alert %s", name)
		}
	}
}

// TestCodeNamesPages: each page and heading that code names, in a comment or a message, exists.
func TestCodeNamesPages(t *testing.T) {
	page, found := regexp.MustCompile(`\bdocs/[a-z/-]+\.md(#[a-z0-9-]+)?`), 0
	for file := range goFiles(t, parser.ImportsOnly) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range page.FindAllString(string(text), -1) {
			found++
			if p, heading, _ := strings.Cut(name, "#"); !exists(p) || heading != "" && !hasHeading(t, p, "", heading) {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
	if found == 0 {
		t.Error("no code names a page")
	}
}

// docs reads the pages for people, by their paths.
func docs(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			pages[file] = string(b)
		}
	}
	return pages
}

// codeSpans lists what a page has in backticks, each on one line, and the
// lines of its code blocks.
func codeSpans(text string) []string {
	var spans []string
	for i, block := range strings.Split(text, "```") {
		if i%2 == 1 {
			spans = append(spans, strings.Split(block, "\n")...)
			continue
		}
		for line := range strings.Lines(block) {
			if strings.HasPrefix(line, "\t") {
				spans = append(spans, strings.TrimSpace(line))
			}
		}
		for j, span := range strings.Split(block, "`") {
			if j%2 == 1 {
				spans = append(spans, strings.Join(strings.Fields(span), " "))
			}
		}
	}
	return spans
}

// repositoryPath tells a path of the repository from other words: it begins
// with "./" or a top folder, or it ends as files of the repository do.
func repositoryPath(word string) (string, bool) {
	p, relative := strings.CutPrefix(strings.Trim(word, "'\",:"), "./")
	p = strings.TrimSuffix(strings.TrimSuffix(p, "..."), "/")
	if strings.ContainsAny(p, "*<>{}$") || strings.HasPrefix(p, "bin/") || strings.HasPrefix(p, "my-") ||
		strings.HasPrefix(p, "/") {
		return "", false
	}
	top, _, folder := strings.Cut(p, "/")
	switch path.Ext(p) {
	case ".go", ".md", ".yaml", ".sh", ".txtar":
		return p, true
	}
	return p, relative || folder && (exists(top) || top == "internal")
}

func exists(p string) bool {
	_, err := os.Stat(filepath.FromSlash(p))
	return err == nil
}

// checkPatterns holds the patterns of a command `go test` against the tests of
// its packages: each alternative matches one at least.
func checkPatterns(t *testing.T, page, command string, tests map[string][]string) {
	t.Helper()
	for _, kind := range []struct{ flag, prefix string }{{"-run", "Test"}, {"-bench", "Benchmark"}} {
		_, after, found := strings.Cut(command, kind.flag+" ")
		if !strings.Contains(command, "go test") || !found {
			continue
		}
		pattern, _, _ := strings.Cut(after, " ")
		pattern, _, _ = strings.Cut(strings.Trim(pattern, "'"), "/")
		if pattern == "^$" || pattern == "." {
			continue
		}
		for alternative := range strings.SplitSeq(pattern, "|") {
			re, err := regexp.Compile(alternative)
			if err != nil {
				t.Errorf("%s: %s: %v", page, command, err)
				continue
			}
			if !anyTest(command, re, kind.prefix, tests) {
				t.Errorf("%s: %s: no test matches %q", page, command, alternative)
			}
		}
	}
}

// anyTest says whether a package that the command names has such a test.
func anyTest(command string, re *regexp.Regexp, prefix string, tests map[string][]string) bool {
	for _, word := range strings.Fields(command) {
		folder, is := strings.CutPrefix(word, "./")
		if !is && word != "." {
			continue
		}
		for _, name := range tests[strings.TrimSuffix(folder, "/...")] {
			if strings.HasPrefix(name, prefix) && re.MatchString(name) {
				return true
			}
		}
	}
	return false
}

// testsByFolder lists the tests and benchmarks of each package.
func testsByFolder(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	for file, parsed := range goFiles(t, parser.SkipObjectResolution) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				tests[path.Dir(file)] = append(tests[path.Dir(file)], f.Name.Name)
			}
		}
	}
	return tests
}

// links lists the targets of links within the repository.
func links(text string) []string {
	var targets []string
	for _, match := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(match[1], "://") {
			targets = append(targets, match[1])
		}
	}
	return targets
}

// hasHeading says whether a page has the heading that an anchor stands for. An
// anchor alone is one of the page itself.
func hasHeading(t *testing.T, file, page, anchor string) bool {
	t.Helper()
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		file = path.Join(file, page)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	notInAnchors := regexp.MustCompile(`[^a-z0-9_ -]`)
	for line := range strings.Lines(string(b)) {
		if heading, is := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); is && strings.HasPrefix(line, "#") {
			slug := notInAnchors.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			if strings.ReplaceAll(slug, " ", "-") == anchor {
				return true
			}
		}
	}
	return false
}
