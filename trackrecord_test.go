package nftproxy_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTrackRecord: each bug in docs/track-record.md has one command, which runs
// one test that exists, or one scenario that is a file.
func TestTrackRecord(t *testing.T) {
	b, err := os.ReadFile("docs/track-record.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testsByFolder(t)
	command := regexp.MustCompile("^`go test (\\.[\\w/]*) -run (Test\\w+)\\$?(?:/\\^([\\w-]+)\\$)?`$")
	bugs := 0
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) < 4 || cells[0] == "| Number" {
			continue
		}
		bugs++
		parts := command.FindStringSubmatch(cells[2])
		if parts == nil {
			t.Errorf("%s: %q: want one command that runs one test", cells[0], cells[2])
			continue
		}
		folder, test, name := strings.TrimPrefix(parts[1], "./"), parts[2], parts[3]
		if !slices.Contains(tests[folder], test) {
			t.Errorf("%s: %s has no %s", cells[0], folder, test)
		}
		if name != "" && !exists("test/scenario/testdata/"+name+".txtar") {
			t.Errorf("%s: there is no scenario %s", cells[0], name)
		}
	}
	if bugs < 20 {
		t.Errorf("%d bugs were found on the page", bugs)
	}
}
