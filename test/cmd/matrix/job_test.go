package main

import (
	"strings"
	"testing"
)

// TestFrame: the lines that frame a job's output are read as they were written, and others are not.
func TestFrame(t *testing.T) {
	begin, end := strings.TrimPrefix(beginFrame("a/b"), "\n"), strings.TrimPrefix(endFrame("a/b", 2), "\n")
	if name, ended, _, is := readFrame(begin); name != "a/b" || ended || !is {
		t.Errorf("%q is read as %q, %v, %v", begin, name, ended, is)
	}
	if name, ended, status, is := readFrame(end); name != "a/b" || !ended || status != 2 || !is {
		t.Errorf("%q is read as %q, %v, %d, %v", end, name, ended, status, is)
	}
	for _, line := range []string{"", "PASS\n", "matrix begin a\n", "\x1fmatrix begin\n", "\x1fmatrix end a x\n"} {
		if _, _, _, is := readFrame(line); is {
			t.Errorf("%q is read as a frame", line)
		}
	}
}
