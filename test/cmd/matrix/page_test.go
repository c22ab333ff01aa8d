package main

import (
	"strings"
	"testing"
)

// TestPage: a page gets a matrix at its end, and then always the newest one in its place.
func TestPage(t *testing.T) {
	findings, err := readFindings([]byte(`{"level":"yellow","findings":[
		{"probe":"rights","level":"green","found":"CAP_NET_ADMIN","do":""},
		{"probe":"kernel: SCTP","level":"green","found":"works","do":""},
		{"probe":"kernel: owned tables","level":"yellow","found":"has none","do":"live | with it"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	skips := map[string]string{"TestS": "=== RUN   TestS\n    s_test.go:9: no SCTP\n"}
	for _, name := range []string{"TestX/1", "TestX/2", "TestX/3"} {
		skips[name] = "    x_test.go:5: too slow\n"
	}
	old := column{Series: "5.10", Kernel: "5.10.262-1", Day: "2026-11-23", Findings: findings,
		Results: []result{{Pkg: "a/b", Passed: 2, Failed: 1, Whole: true, Skips: skips}}}
	young := column{Series: "6.12", Kernel: "6.12.1-1", Day: "2026-11-24", Findings: findings[:1],
		Results: []result{{Pkg: "a/b", Passed: 3, Whole: true, Died: true, Skips: skips}}}
	poor := column{Series: "6.12-nf_tables", Lacks: []string{"xt_*"}, Results: []result{{Pkg: demo, Whole: true},
		{Pkg: "c", Whole: true, Asked: []string{"c: xt_mark"}}}}
	if poor.Results[1].good() {
		t.Error("a package that asks for a module that is not there is good")
	}
	without := matrix([]column{poor})
	for _, want := range []string{"| lacks the modules | xt_* |\n", "asked the kernel for | **c: xt_mark** |\n",
		"| `make demo` | works |\n"} {
		if !strings.Contains(without, want) {
			t.Errorf("%q is not in\n%s", want, without)
		}
	}
	text := matrix([]column{old, young})
	for _, want := range []string{
		"|  | Linux 5.10 | Linux 6.12 |\n| --- | --- | --- |\n",
		"| run on | 2026-11-23 | 2026-11-24 |\n",
		"| SCTP | works | works |\n",
		"| owned tables | **yellow**: has none; live \\| with it |  |\n",
		"| tests of `a/b` | 2 pass, **1 fail**, 4 skipped | 3 pass, **the kernel died**, 4 skipped |\n",
		"- `TestS` of a/b: no SCTP (on 5.10, 6.12)\n",
		"- `TestX/1` and 2 more of a/b: too slow (on 5.10, 6.12)\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "CAP_NET_ADMIN") {
		t.Errorf("a finding that is not about the kernel is in\n%s", text)
	}
}
