package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// tracing is where a machine has the kernel's tracepoints.
const tracing = "/sys/kernel/tracing"

// traceRequests has the kernel write down each module that it asks modprobe for, and the process on whose behalf.
func traceRequests() error {
	if err := unix.Mount("tracefs", tracing, "tracefs", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", tracing, err)
	}
	return os.WriteFile(filepath.Join(tracing, "events/module/module_request/enable"), []byte("1"), 0)
}

// takeRequests returns what the kernel wrote down since the last call, each once.
func takeRequests() ([]request, error) {
	file := filepath.Join(tracing, "trace")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseRequests(string(text)), os.WriteFile(file, nil, 0) // opened to be written, it is emptied
}

// parseRequests reads lines such as "iptables-99 [001] ..... 7.012: module_request: ip_tables wait=1 call_site=...".
func parseRequests(trace string) []request {
	format := regexp.MustCompile(`(?m)^ *(.+?)-\d+ +\[\d+\] .* module_request: (\S+) wait=`)
	var found []request
	for _, m := range format.FindAllStringSubmatch(trace, -1) {
		if r := (request{Module: m[2], By: strings.TrimSpace(m[1])}); !slices.Contains(found, r) {
			found = append(found, r)
		}
	}
	return found
}
