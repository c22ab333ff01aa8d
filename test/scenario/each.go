package scenario

import (
	"path/filepath"
	"strings"
	"testing"
)

// Each runs a test, named after the file, for each scenario in a directory.
func Each(t *testing.T, directory string, test func(*testing.T, *Scenario)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(directory, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", directory, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			s, err := Read(file)
			if err != nil {
				t.Fatal(err)
			}
			test(t, s)
		})
	}
}
