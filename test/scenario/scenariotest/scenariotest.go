// Package scenariotest promises that a test is run for each of the project's
// scenario files.
//
// It says nothing about what the test does with them.
package scenariotest

import (
	"path/filepath"
	"strings"
	"testing"

	"nftproxy/test/scenario"
)

// Each runs a test, named after the file, for each scenario in a directory.
func Each(t *testing.T, directory string, test func(*testing.T, *scenario.Scenario)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(directory, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", directory, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			s, err := scenario.Read(file)
			if err != nil {
				t.Fatal(err)
			}
			test(t, s)
		})
	}
}
