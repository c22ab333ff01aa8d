package main

import (
	"slices"
	"strings"
	"testing"
)

// TestFrame: the lines that frame a job's output are read as they were written, and others are not.
func TestFrame(t *testing.T) {
	for _, want := range []frame{
		{kind: frameBegin, job: "a/b"},
		{kind: frameAsked, job: "a/b", asked: request{"net-pf-2", "a \"b\" c"}},
		{kind: frameEnd, job: "a/b", status: 2},
	} {
		line := strings.TrimPrefix(want.String(), "\n")
		if got, is := readFrame(line); got != want || !is {
			t.Errorf("%q is read as %+v, %v; want %+v", line, got, is, want)
		}
	}
	for _, line := range []string{"", "PASS\n", "matrix begin a 0 \"\" \"\"\n", "\x1fmatrix begin\n",
		"\x1fmatrix end a x \"\" \"\"\n"} {
		if _, is := readFrame(line); is {
			t.Errorf("%q is read as a frame", line)
		}
	}
}

// TestParseRequests: the kernel's trace says which process asked for which module.
func TestParseRequests(t *testing.T) {
	const trace = `# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
         ipset-310     [000] .....     7.012345: module_request: nfnetlink-subsys-6 wait=1 call_site=nfnetlink_rcv_msg
 node-otherproxy-1077  [001] .....     8.100000: module_request: ip_tables wait=1 call_site=x
 node-otherproxy-1078  [000] .....     8.200000: module_request: ip_tables wait=1 call_site=x
`
	want := []request{{"nfnetlink-subsys-6", "ipset"}, {"ip_tables", "node-otherproxy"}}
	got := parseRequests(trace)
	if !slices.Equal(got, want) {
		t.Errorf("requests %v, want %v", got, want)
	}
	lacking := map[string]bool{"ip_tables": true, "nfnetlink_subsys_6": true}
	if asked := (outcome{asked: got}).askedByOurs("node/otherproxy", lacking); !slices.Equal(asked,
		[]string{"node-otherproxy: ip_tables"}) {
		t.Errorf("of ours: %q", asked)
	}
}
