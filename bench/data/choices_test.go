package data

import (
	"io"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"strings"
	"testing"

	"nftproxy/test/lib/testnet"
)

// TestChiTail compares with values of tables of the distribution.
func TestChiTail(t *testing.T) {
	for _, test := range []struct {
		x       float64
		freedom int
		want    float64
	}{
		{0, 1, 1}, {0, 4, 1}, {3.841, 1, 0.05}, {10.828, 1, 0.001}, {5.991, 2, 0.05}, {7.815, 3, 0.05}, {16.919, 9, 0.05}, {27.877, 9, 0.001}, {18.307, 10, 0.05},
	} {
		if got := chiTail(test.x, test.freedom); math.Abs(got-test.want) > test.want*0.001 {
			t.Errorf("%v with %d degrees of freedom: %v, want %v", test.x, test.freedom, got, test.want)
		}
	}
}

func TestDigits(t *testing.T) {
	for v, want := range map[float64]string{132175: "132180", 0.000052959: "0.000052959", 28.13249: "28.132", 0: "0"} {
		if got := digits(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

// TestSource: no two connections come from the same address and port, and all are in clientNet.
func TestSource(t *testing.T) {
	for _, flows := range []bool{false, true} {
		seen := map[netip.AddrPort]bool{}
		for i := range 1_000_000 {
			from := source(i, flows)
			if !clientNet().Contains(from.Addr()) || seen[from] || flows != (from.Port() != 0) {
				t.Fatalf("flows %t: the %d-th is from %v", flows, i, from)
			}
			seen[from] = true
		}
	}
}

// TestChoices measures a little with the kernel, and looks at what does not depend on the machine's speed.
func TestChoices(t *testing.T) {
	testnet.SkipUnwanted(t)
	if os.Geteuid() != 0 {
		testnet.Require(t, fs.ErrPermission)
	}
	c := Choices{Services: []int{1, 3}, Rounds: 2, Burst: 5, Draws: 3000, Loads: 2, Commits: 2, Log: io.Discard}
	figures, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, f := range figures {
		seen[f.Question]++
		if f.Value < 0 || f.Against != "" && f.Ratio <= 0 {
			t.Errorf("%+v", f)
		}
		// Draws are random, clients and flows are not: one in 10^9 runs with a correct kernel is below.
		if strings.HasPrefix(f.Question, "... chance") && f.Value < 1e-9 {
			t.Errorf("the connections are not spread as they should be: %+v", f)
		}
		if f.Question == "changed weight, objects" && (f.Value < 1 || f.Ratio >= 0.5) {
			t.Errorf("a changed weight writes nothing, or half of everything: %+v", f)
		}
	}
	for question, want := range map[string]int{"connect() of a pod, p50": 10, "... chance of as much or more": 4, "changed weight, commit": 4} {
		if seen[question] != want {
			t.Errorf("%d rows of %q, want %d", seen[question], question, want)
		}
	}
	var table strings.Builder
	if err := WriteFigures(&table, figures); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(table.String(), "\n"); got != len(figures)+1 {
		t.Errorf("%d lines of %d figures:\n%s", got, len(figures), table.String())
	}
}

// TestRoll: each step moves at least the clients of the replaced endpoint, and in the end all have moved.
func TestRoll(t *testing.T) {
	testnet.SkipUnwanted(t)
	if os.Geteuid() != 0 {
		testnet.Require(t, fs.ErrPermission)
	}
	const endpoints = 8
	r, err := Choices{Log: io.Discard}.Roll(t.Context(), endpoints)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Steps) != endpoints {
		t.Fatalf("%d steps, want %d", len(r.Steps), endpoints)
	}
	before := 0.0
	for i, s := range r.Steps {
		// A share of the table is off by less than a slot of 1,021.
		if s.Moved < 1./endpoints-0.001 || s.Moved > 3./endpoints || s.EverMoved < before || s.Objects <= s.RandomObjects {
			t.Errorf("step %d after %.3f: %+v", i+1, before, s)
		}
		before = s.EverMoved
	}
	if before != 1 {
		t.Errorf("%.3f of the clients have moved in the end, want all", before)
	}
	var table strings.Builder
	if err := r.Write(&table); err != nil || strings.Count(table.String(), "\n") != endpoints+1 {
		t.Errorf("%v:\n%s", err, table.String())
	}
}
