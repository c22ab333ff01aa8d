package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// result is how the tests of a package went on one kernel.
type result struct {
	Pkg            string
	Passed, Failed int
	// Skips has the words of each test that was skipped, and Failures the output of each that failed.
	Skips, Failures map[string]string
	// Died says that the kernel ended in the middle of the package.
	Died bool
	// Asked are the requests of the package's programs, and of nftproxy, for modules that the machine lacks.
	Asked []string
	// Whole is false if the tests ended with an error other than a failed test.
	Whole bool
	Took  time.Duration
}

func (r result) good() bool { return r.Failed == 0 && r.Whole && !r.Died && len(r.Asked) == 0 }

// event is one of go tool test2json.
type event struct{ Action, Test, Output string }

// read reads the output of a package's tests, run with -test.v=test2json, or of the demo.
func read(ctx context.Context, pkg string, o outcome) (result, error) {
	if pkg == demo {
		r := result{Pkg: pkg, Died: o.died, Took: o.took, Whole: o.status == 0}
		if !r.Whole {
			r.Failures = map[string]string{"(the whole)": tail(string(o.output), 60)}
		}
		return r, nil
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-p", pkg)
	cmd.Stdin = bytes.NewReader(o.output)
	text, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("%s: %w", cmd, err)
	}
	r := result{Pkg: pkg, Skips: map[string]string{}, Failures: map[string]string{}, Died: o.died, Took: o.took}
	outputs := map[string]*strings.Builder{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return r, err
		}
		if outputs[e.Test] == nil {
			outputs[e.Test] = &strings.Builder{}
		}
		switch e.Action {
		case "output":
			outputs[e.Test].WriteString(e.Output)
		case "pass":
			r.Passed += count(e.Test)
		case "fail":
			r.Failed += count(e.Test)
			if e.Test != "" {
				r.Failures[e.Test] = outputs[e.Test].String()
			}
		case "skip":
			if e.Test != "" {
				r.Skips[e.Test] = outputs[e.Test].String()
			}
		}
	}
	r.Whole = o.status == 0 || o.status == 1 && r.Failed > 0
	if !r.Whole && outputs[""] != nil {
		r.Failures["(the whole)"] = tail(string(o.output), 60)
	}
	return r, nil
}

// count counts a test, and not the package.
func count(test string) int {
	if test == "" {
		return 0
	}
	return 1
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// failedTests are the names of tests that failed, without those that failed only for a part of them.
func (r result) failedTests() []string {
	var names []string
	for name := range r.Failures {
		inner := func(other string) bool { return strings.HasPrefix(other, name+"/") }
		if !slices.ContainsFunc(keys(r.Failures), inner) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func keys(m map[string]string) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}
