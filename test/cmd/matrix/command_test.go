package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestParseCommand: flags after the command are the command's, and a kernel that does not exist is refused by its name.
func TestParseCommand(t *testing.T) {
	o, err := parseCommand([]string{"--kernel=6.1", "ls", "--all"})
	if err != nil || o.kernel != "6.1" || !slices.Equal(o.command, []string{"ls", "--all"}) {
		t.Errorf("%+v, %v", o, err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{{nil, "which command"}, {[]string{"--kernel=2.4", "ls"}, "kernel 2.4"}} {
		if err := tryCommand(t.Context(), c.args, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want one with %q", c.args, err, c.want)
		}
	}
}
