package main

import (
	"os"
	"strings"
	"testing"
)

// TestReport: a report in ginkgo's form is counted. It is cut from a real run, and a second attempt and the
// words of a test that skips itself are put in.
func TestReport(t *testing.T) {
	r, err := readReport("testdata/report.json", suiteAdditions{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/report.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.text(); got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestNoReport: a run that wrote no report is an error, not a run without failures.
func TestNoReport(t *testing.T) {
	if _, err := readReport("testdata/missing.json", suiteAdditions{}); err == nil {
		t.Error("no error")
	}
}

// TestOmissions: the selection has each kind of test that is left out, and each has a reason.
func TestOmissions(t *testing.T) {
	for _, has := range []suiteAdditions{{}, {announcer: true}} {
		args := strings.Join(suiteCommand(suiteOptions{nodes: 3, processes: 2, has: has}, "report.json"), " ")
		for _, o := range omissions(has) {
			if o.because == "" || (o.feature == "") == (o.name == "") || !strings.Contains(args, o.feature+o.name) {
				t.Errorf("%+v: %+v: arguments %s", has, o, args)
			}
			name, labels := "a test "+o.name, []string{sig, "Feature:" + o.feature}
			if got := omitted(name, labels, has); !strings.Contains(got, o.because) {
				t.Errorf("%+v: %+v is left out because of %q", has, o, got)
			}
		}
	}
	if got := omitted("a test", []string{sig, "Slow", "Feature:IPv6DualStack"}, suiteAdditions{}); got != "" {
		t.Errorf("tests of dual-stack are left out: %s", got)
	}
	if got := omitted("a test", []string{sig, "Feature:NetworkPolicy"}, suiteAdditions{policies: true}); got != "" ||
		strings.Contains(labelFilter(suiteAdditions{policies: true}), "NetworkPolicy") {
		t.Errorf("tests of NetworkPolicies are left out where they are enforced: %s", got)
	}
	if got := omitted("a test", []string{sig, "Feature:LoadBalancer"}, suiteAdditions{announcer: true}); got != "" ||
		strings.Contains(labelFilter(suiteAdditions{announcer: true}), "LoadBalancer") {
		t.Errorf("tests of load balancers are left out where there are some: %s", got)
	}
}
