package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"nftproxy/conntrack"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"nftproxy": main})
}

// TestScripts runs the commands as a person would, and checks their output and exit code.
// They run in the test's own namespace and must not change the machine's settings.
func TestScripts(t *testing.T) {
	before := conntrack.Sysctls{}.Plan(conntrack.Files{})
	t.Cleanup(func() {
		same := cmp.Comparer(func(a, b error) bool { return (a == nil) == (b == nil) })
		if diff := cmp.Diff(before, conntrack.Sysctls{}.Plan(conntrack.Files{}), same); diff != "" {
			t.Errorf("the machine's settings have changed (-before +after):\n%s", diff)
		}
	})
	testscript.Run(t, testscript.Params{Dir: "testdata/script", UpdateScripts: false})
}
