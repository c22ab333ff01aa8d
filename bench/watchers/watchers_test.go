package watchers

import (
	"bytes"
	"context"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"nftproxy/test/lib/controlplane"
)

// The variable with which the test binary is started again, as a process of watchers. The last two arguments are Work's.
const workerVariable = "WATCHERS_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) == "" {
		os.Exit(m.Run())
	}
	args := os.Args[len(os.Args)-2:]
	count, err := strconv.Atoi(args[1])
	if err == nil {
		err = Work(context.Background(), args[0], count, os.Stdin, os.Stdout)
	}
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

// TestRun: watchers see all objects, all changes, and the API server's return; and each of them costs something.
func TestRun(t *testing.T) {
	controlplane.Require(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Counts: []int{0, 2}, Services: 20, Endpoints: 3, Changes: 5, Away: time.Millisecond, Worker: []string{self}, Env: []string{workerVariable + "=1"}, Log: os.Stderr,
	}
	results, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 2 {
		t.Fatalf("%d results", len(results))
	}
	for _, step := range steps() {
		none, two := step.of(results[0]), step.of(results[1])
		if none.Received != 0 || none.Sent != 0 {
			t.Errorf("%s: without watchers: %+v", step.name, none)
		}
		if step.name != "rest" && (two.Received == 0 || two.Sent == 0 || two.Nodes == 0 || two.Server == 0) {
			t.Errorf("%s: two watchers: %+v", step.name, two)
		}
	}
	// 20 Services and 20 slices, of some hundred bytes each, for two watchers.
	if start := results[1].Start.Received; start < 2*20*2*200 {
		t.Errorf("at the start two watchers received %d bytes", start)
	}
	if n := results[1].Start.Connections; n != 2 {
		t.Errorf("at the start two watchers made %d connections, not one each", n)
	}
	if results[1].Memory == 0 {
		t.Error("the API server has no memory")
	}
}

// TestSlope: the line does not go through the API server's own work.
func TestSlope(t *testing.T) {
	of := func(watchers int, seconds float64) Result {
		return Result{Watchers: watchers, Start: Cost{Server: time.Duration(seconds * float64(time.Second))}}
	}
	server := func(r Result) float64 { return r.Start.Server.Seconds() }
	for _, c := range []struct {
		results []Result
		want    float64
	}{
		{[]Result{of(0, 5), of(10, 6), of(100, 15)}, 0.1},
		{[]Result{of(7, 5)}, 0},
		{nil, 0},
	} {
		if got := slope(c.results, server); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%v: %v, want %v", c.results, got, c.want)
		}
	}
}

// TestTable: one node's share of a change is that of one change, and a cluster has as many as nodes.
func TestTable(t *testing.T) {
	of := func(watchers int) Result {
		n := time.Duration(watchers)
		return Result{Watchers: watchers, Change: Cost{Server: time.Second + n*20*time.Millisecond, Nodes: n * 40 * time.Millisecond, Received: int64(watchers) * 100_000}}
	}
	var out bytes.Buffer
	if err := Table(&out, Config{Services: 1000, Endpoints: 10, Changes: 100}, []Result{of(0), of(10)}, 5000); err != nil {
		t.Fatal(err)
	}
	var share []string
	for line := range strings.Lines(out.String()) {
		if rest, found := strings.CutPrefix(line, "one change"); found {
			share = strings.Fields(rest)
		}
	}
	if got, want := strings.Join(share, " "), "200.0 us 400.0 us 1.0 kB 1.00 s 5.0 MB"; got != want {
		t.Errorf("one change: %q, want %q\n%s", got, want, out.String())
	}
}
