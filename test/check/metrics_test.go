package check_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/test/check"
)

const page = `
# HELP requests_total Requests, by code.
# TYPE requests_total counter
requests_total{code="200",host="a"} 3
requests_total{code="500",host="a"} 1
# HELP took_seconds How long.
# TYPE took_seconds histogram
took_seconds_bucket{family="IPv4",le="0.001"} 1
took_seconds_bucket{family="IPv4",le="16.384"} 2
took_seconds_bucket{family="IPv4",le="+Inf"} 2
took_seconds_sum{family="IPv4"} 1
took_seconds_count{family="IPv4"} 2
# HELP up Whether.
# TYPE up gauge
up 1
`

const listing = `counter requests_total{code,host}
  help Requests, by code.
histogram took_seconds{family}
  help How long.
  buckets 0.001 16.384
gauge up{}
  help Whether.
`

func TestListing(t *testing.T) {
	families, err := check.ParseMetrics(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	metrics := check.DescribeMetrics(slices.Collect(maps.Values(families)))
	text := ""
	for _, m := range metrics {
		text += m.String()
	}
	if diff := cmp.Diff(listing, text); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	back, err := check.ReadMetrics(strings.NewReader("# a comment\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(metrics, back); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestBroken(t *testing.T) {
	if _, err := check.ParseMetrics(strings.NewReader("a b c\n")); err == nil {
		t.Error("a broken page was read")
	}
	for _, text := range []string{"counter a\n", "  help x\n", "counter a{}\n  buckets x\n",
		"counter a{}\n  color red\n"} {
		if _, err := check.ReadMetrics(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
