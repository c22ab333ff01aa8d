package otherproxy

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLockHeld: a lock that another holder does not give back is an error that names the file.
func TestLockHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xtables.lock")
	unlock, err := lockLegacy(path, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockLegacy(path, 3*lockPeriod); err == nil || !strings.Contains(err.Error(), "lock "+path) {
		t.Errorf("while it is held: %v", err)
	}
	unlock()
	unlock, err = lockLegacy(path, time.Minute)
	if err != nil {
		t.Fatalf("after its release: %v", err)
	}
	unlock()
}
