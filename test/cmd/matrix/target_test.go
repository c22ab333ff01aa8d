package main

import (
	"strings"
	"testing"
)

// TestTargetOf: an architecture without machines is refused by its name, and each other has a cache and
// a line for the jobs of its own.
func TestTargetOf(t *testing.T) {
	if _, err := targetOf("s390x"); err == nil || !strings.Contains(err.Error(), `"s390x"`) {
		t.Errorf("error %v, want one that names s390x", err)
	}
	caches := map[string]bool{}
	for _, arch := range []string{"amd64", "arm64"} {
		target, err := targetOf(arch)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(target.devices, " "), "chardev=jobs") {
			t.Errorf("%s: no device for the jobs' line in %v", arch, target.devices)
		}
		caches[cacheName(arch)] = true
	}
	if len(caches) != 2 {
		t.Errorf("caches %v, want one for each architecture", caches)
	}
}
