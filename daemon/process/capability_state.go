package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// CapabilityState is what a thread may do.
type CapabilityState struct {
	Inheritable, Permitted, Effective, Bounding, Ambient Capabilities
	// NoNewPrivileges says that a program that the thread starts gets no more rights than it has.
	NoNewPrivileges bool
}

// OwnCapabilities returns the state of the calling thread.
func OwnCapabilities() (CapabilityState, error) { return ThreadCapabilities("/proc/thread-self") }

// ThreadCapabilities returns the state of a thread by its directory in /proc.
func ThreadCapabilities(dir string) (CapabilityState, error) {
	text, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return CapabilityState{}, fmt.Errorf("read the capabilities: %w", err)
	}
	return parse(string(text))
}

// parse reads a file status of /proc. A kernel without the line NoNewPrivs (before 4.10) is not supported
// anyway, so every line must be there.
func parse(text string) (CapabilityState, error) {
	var s CapabilityState
	sets := map[string]*Capabilities{"CapInh": &s.Inheritable, "CapPrm": &s.Permitted, "CapEff": &s.Effective,
		"CapBnd": &s.Bounding, "CapAmb": &s.Ambient}
	left := len(sets) + 1
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if set := sets[name]; set != nil {
			n, err := strconv.ParseUint(value, 16, 64)
			if err != nil {
				return s, fmt.Errorf("read the capabilities: %s: %w", name, err)
			}
			*set = Capabilities(n)
			left--
		}
		if name == "NoNewPrivs" {
			s.NoNewPrivileges = value == "1"
			left--
		}
	}
	if left != 0 {
		return s, fmt.Errorf("read the capabilities: the kernel shows %d lines less than it should", left)
	}
	return s, nil
}
