package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestCollect: the output of jobs is theirs whatever is between them, and a machine that ends in the
// middle of a job is no good outcome of that job.
func TestCollect(t *testing.T) {
	begin := func(job string) string { return frame{kind: frameBegin, job: job}.String() }
	end := func(job string, status int) string { return frame{kind: frameEnd, job: job, status: status}.String() }
	asked := request{"ip_tables", "iptables"}
	line := "noise\n" + begin("one") + "PASS\r\nmore" + frame{kind: frameAsked, job: "one", asked: asked}.String() +
		end("one", 0) + "noise\n" + begin("two") + "x\n" + end("two", 2) + begin("three") + "half"
	done := map[string]outcome{}
	var live strings.Builder
	died, err := collect(strings.NewReader(line), &live, func(name string, o outcome) error {
		done[name] = o
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(died) != 1 {
		t.Errorf("the machine ended in the middle of %v", died)
	}
	maps.Copy(done, died)
	one, two, three := done["one"], done["two"], done["three"]
	if one.status != 0 || one.died || strings.TrimRight(string(one.output), "\n") != "PASS\r\nmore" ||
		!slices.Equal(one.asked, []request{asked}) {
		t.Errorf("one: %+v", one)
	}
	if !strings.HasPrefix(live.String(), "PASS\r\nmore") || strings.Contains(live.String(), "noise") {
		t.Errorf("live: %q", live.String())
	}
	if two.status != 2 || two.died || len(two.asked) > 0 || !strings.HasPrefix(string(two.output), "x\n") {
		t.Errorf("two: %+v", two)
	}
	if !three.died || string(three.output) != "half" || len(done) != 3 {
		t.Errorf("three: %+v of %d", three, len(done))
	}
}

// TestRead: failed tests are told apart from those that contain them, and a test that ends the
// process, or a machine that ends in its middle, is no success.
func TestRead(t *testing.T) {
	const passes = "\x16=== RUN   TestA\n\x16--- PASS: TestA (0.00s)\n"
	for _, c := range []struct {
		name, output  string
		status        int
		died, good    bool
		passed, fails int
		failed, skip  string
	}{
		{name: "pass", output: passes + "\x16PASS\n", good: true, passed: 1},
		{name: "skip", output: "\x16=== RUN   TestS\n    s_test.go:9: no SCTP\n\x16--- SKIP: TestS (0.00s)\n\x16PASS\n",
			good: true, skip: "no SCTP"},
		{name: "fail", output: passes + "\x16=== RUN   TestB\n\x16=== RUN   TestB/in\n    b_test.go:3: bad\n    \x16--- " +
			"FAIL: TestB/in (0.00s)\n\x16--- FAIL: TestB (0.00s)\n\x16FAIL\n", status: 1, passed: 1, fails: 2,
			failed: "TestB/in"},
		{name: "exit", output: passes + "\x16=== RUN   TestZ\npanic: oh\n", status: 2, passed: 1, failed: "(the whole)"},
		{name: "died", output: passes + "\x16=== RUN   TestZ\n", died: true, passed: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := read(t.Context(), "some/package", outcome{status: c.status, output: []byte(c.output), died: c.died})
			if err != nil {
				t.Fatal(err)
			}
			if r.good() != c.good || r.Passed != c.passed || r.Failed < c.fails ||
				strings.Join(r.failedTests(), " ") != c.failed {
				t.Errorf("%+v, failed tests %q", r, r.failedTests())
			}
			if got := reason(r.Skips["TestS"]); got != c.skip {
				t.Errorf("skipped for %q, want %q", got, c.skip)
			}
		})
	}
}
