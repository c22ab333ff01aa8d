package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// suiteReport is what is used of ginkgo's Report (github.com/onsi/ginkgo/v2/types).
type suiteReport struct {
	RunTime     time.Duration
	SpecReports []spec
	// SpecialSuiteFailureReasons says why the run ended early, for example.
	SpecialSuiteFailureReasons []string
}

// spec is one test, or one of the steps around all tests.
type spec struct {
	ContainerHierarchyTexts  []string
	ContainerHierarchyLabels [][]string
	LeafNodeType             string // "It": a test
	LeafNodeText             string
	LeafNodeLabels           []string
	State                    string
	NumAttempts              int
	RunTime                  time.Duration
	Failure                  struct{ Message string }
}

func (s spec) name() string {
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

func (s spec) labels() []string {
	return append(slices.Concat(s.ContainerHierarchyLabels...), s.LeafNodeLabels...)
}

// results are the tests of sig-network by how they went.
type results struct {
	took   time.Duration
	passed int
	// again are tests that passed at the second attempt, failed those that did not.
	again, failed []string
	// skipped counts tests by the reason.
	skipped map[string]int
	// early says why the run ended before its end.
	early []string
}

// notSelected is the reason of tests that --focus left out.
const notSelected = "not among those that were asked for"

func readReport(path string, has suiteAdditions) (results, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return results{}, fmt.Errorf("read the report of the tests: %w", err)
	}
	var suites []suiteReport
	if err := json.Unmarshal(text, &suites); err != nil {
		return results{}, fmt.Errorf("%s: %w", path, err)
	}
	r := results{skipped: map[string]int{}}
	for _, suite := range suites {
		r.took += suite.RunTime
		r.early = append(r.early, suite.SpecialSuiteFailureReasons...)
		for _, s := range suite.SpecReports {
			r.add(s, has)
		}
	}
	return r, nil
}

// add sorts one test in.
func (r *results) add(s spec, has suiteAdditions) {
	line := fmt.Sprintf("%s (%v)", s.name(), s.RunTime.Round(time.Second))
	switch {
	case s.LeafNodeType != "It":
		// A step around all tests counts only if it fails.
		if s.State != "passed" && s.State != "skipped" {
			r.failed = append(r.failed, s.LeafNodeType+" "+line+firstLine(s.Failure.Message))
		}
	case !slices.Contains(s.labels(), sig):
	case s.State == "passed":
		r.passed++
		if s.NumAttempts > 1 {
			r.again = append(r.again, line)
		}
	case s.State == "skipped" || s.State == "pending":
		r.skipped[s.reason(has)]++
	default:
		r.failed = append(r.failed, line+": "+s.State+firstLine(s.Failure.Message))
	}
}

// reason says why a test was skipped.
func (s spec) reason(has suiteAdditions) string {
	if why := omitted(s.name(), s.labels(), has); why != "" {
		return why
	}
	if s.Failure.Message != "" {
		return "by itself: " + strings.TrimSpace(s.Failure.Message)
	}
	return notSelected
}

// firstLine is the first line of a failure's message, after a colon.
func firstLine(message string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	if line == "" {
		return ""
	}
	return ": " + line
}

func (r results) text() string {
	skipped := 0
	for _, n := range r.skipped {
		skipped += n
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d tests passed, %d failed, %d skipped, in %v\n", sig, r.passed, len(r.failed), skipped,
		r.took.Round(time.Second))
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&b, "%s:\n", title)
		}
		for _, l := range lines {
			fmt.Fprintf(&b, "  %s\n", l)
		}
	}
	section("ended early", r.early)
	section("failed", r.failed)
	section(fmt.Sprintf("%d of those that passed, at the second attempt only", len(r.again)), r.again)
	var reasons []string
	for why, n := range r.skipped {
		reasons = append(reasons, fmt.Sprintf("%4d  %s", n, why))
	}
	// The most first.
	slices.SortFunc(reasons, func(a, b string) int { return strings.Compare(b, a) })
	section("skipped", reasons)
	return b.String()
}
