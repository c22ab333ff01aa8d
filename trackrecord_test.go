package nftproxy_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTrackRecord: each bug in docs/evidence/track-record.md has one command, which runs
// one test that exists, or one scenario that is a file.
func TestTrackRecord(t *testing.T) {
	tests := testsByFolder(t)
	rows := tableRows(t, "docs/evidence/track-record.md", 4)
	for _, cells := range rows {
		checkCommand(t, tests, cells[0], cells[2])
	}
	if len(rows) < 20 {
		t.Errorf("%d bugs were found on the page", len(rows))
	}
}

// TestSurvey: docs/evidence/survey.md has every feature of KEP-5922's table. Each that nftproxy claims has one command
// that shows it; a feature without is for something else than a service proxy.
func TestSurvey(t *testing.T) {
	tests := testsByFolder(t)
	wanted := []string{
		"2447", "614", "752", "563", "1138", "2365", "2079", "1435", "2086", "1669", "3836", "1860", "1880", "2433", "4444",
		"3015",
	}
	number := regexp.MustCompile(`\[KEP-(\d+)\]\(https://kep\.k8s\.io/(\d+)\)`)
	var got []string
	for _, cells := range tableRows(t, "docs/evidence/survey.md", 5) {
		if parts := number.FindStringSubmatch(cells[0]); parts != nil {
			got = append(got, parts[1])
			if parts[1] != parts[2] {
				t.Errorf("%s: the link leads to KEP-%s", cells[0], parts[2])
			}
		}
		if cells[3] == "" && strings.HasPrefix(cells[4], "for ") {
			continue
		}
		checkCommand(t, tests, cells[0], cells[4])
	}
	if !slices.Equal(got, wanted) {
		t.Errorf("the page has the KEPs %q, want those of the survey, %q", got, wanted)
	}
	required := tableRows(t, "docs/evidence/survey.md", 2)
	for _, cells := range required {
		checkCommand(t, tests, cells[0], cells[1])
	}
	if len(required) == 0 {
		t.Error("no test that will be required was found on the page")
	}
}

// tableRows returns the rows of a page's tables with so many columns, without their headings.
func tableRows(t *testing.T, page string, columns int) [][]string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	body := false
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case !strings.HasPrefix(line, "|"):
			body = false
		case strings.HasPrefix(line, "|---"):
			body = true
		case body && len(cells) == columns:
			for i, cell := range cells {
				cells[i] = strings.TrimSpace(cell)
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

// checkCommand: a cell is one command that runs one test that exists, or one scenario that is a file.
func checkCommand(t *testing.T, tests map[string][]string, row, cell string) {
	t.Helper()
	command := regexp.MustCompile("^`go test (\\.[\\w/]*) -run (Test\\w+)\\$?(?:/\\^([\\w-]+)\\$)?`$")
	parts := command.FindStringSubmatch(cell)
	if parts == nil {
		t.Errorf("%s: %q: want one command that runs one test", row, cell)
		return
	}
	folder, test, name := strings.TrimPrefix(parts[1], "./"), parts[2], parts[3]
	if !slices.Contains(tests[folder], test) {
		t.Errorf("%s: %s has no %s", row, folder, test)
	}
	if name != "" && !exists("test/scenario/testdata/"+name+".txtar") {
		t.Errorf("%s: there is no scenario %s", row, name)
	}
}
