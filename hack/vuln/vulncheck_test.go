// Package vuln tests hack/vulncheck.sh: a check that finds nothing is worth something only if it finds what there is.
package vuln

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVulncheck: the exit code and the words, by what the database has. The package reads files, and the made-up
// vulnerability is about that.
func TestVulncheck(t *testing.T) {
	database := func(name string) string {
		t.Helper()
		dir, err := filepath.Abs(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return "VULNDB=file://" + dir
	}
	const away = "VULNDB=https://127.0.0.1:1"
	for name, c := range map[string]struct {
		env  []string
		code int
		says string
	}{
		"none":             {[]string{database("good")}, 0, "No vulnerabilities found"},
		"one":              {[]string{database("bad")}, 3, "GO-9999-0001"},
		"one, may be away": {[]string{database("bad"), "VULNDB_MAY_BE_AWAY=1"}, 3, "GO-9999-0001"},
		"away":             {[]string{away}, 1, "creating client"},
		"may be away":      {[]string{away, "VULNDB_MAY_BE_AWAY=1"}, 0, "NOT CHECKED"},
		"no package":       {[]string{database("good"), "VULNDB_MAY_BE_AWAY=1", "PACKAGE=./nothing"}, 1, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			pkg := "./daemon/process"
			for _, e := range c.env {
				if p, is := strings.CutPrefix(e, "PACKAGE="); is {
					pkg = p
				}
			}
			cmd := exec.Command("../vulncheck.sh", pkg)
			cmd.Env = append(os.Environ(), c.env...)
			out, err := cmd.CombinedOutput()
			code := 0
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != c.code || !strings.Contains(string(out), c.says) {
				t.Errorf("exit code %d, want %d with %q; it says:\n%s", code, c.code, c.says, out)
			}
		})
	}
}
