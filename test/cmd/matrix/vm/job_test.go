package vm_test

import (
	"strings"
	"testing"

	"nftproxy/test/cmd/matrix/vm"
)

// TestFrame: the lines that frame a job's output are read as they were written, and others are not.
func TestFrame(t *testing.T) {
	begin, end := strings.TrimPrefix(vm.Begin("a/b"), "\n"), strings.TrimPrefix(vm.End("a/b", 2), "\n")
	if name, ended, _, is := vm.Frame(begin); name != "a/b" || ended || !is {
		t.Errorf("%q is read as %q, %v, %v", begin, name, ended, is)
	}
	if name, ended, status, is := vm.Frame(end); name != "a/b" || !ended || status != 2 || !is {
		t.Errorf("%q is read as %q, %v, %d, %v", end, name, ended, status, is)
	}
	for _, line := range []string{"", "PASS\n", "matrix begin a\n", "\x1fmatrix begin\n", "\x1fmatrix end a x\n"} {
		if _, _, _, is := vm.Frame(line); is {
			t.Errorf("%q is read as a frame", line)
		}
	}
}
