package promql

import (
	"context"
	"os"
	"regexp"
	"testing"
	"time"
)

// TestWakeQueries: the queries of docs/scale-to-zero.md read what nftproxy exports, and have one value in each case, as
// KEDA's scaler needs: what the nodes have of the Service together, and 0 where none has any.
func TestWakeQueries(t *testing.T) {
	text, err := os.ReadFile("../../docs/scale-to-zero.md")
	if err != nil {
		t.Fatal(err)
	}
	exported := readListing(t)
	exported["http_requests_total"] = []string{"namespace", "service"} // what the pods of the example count
	queries := regexp.MustCompile(`(?m)^ +query: (.+)$`).FindAllStringSubmatch(string(text), -1)
	if len(queries) != 2 {
		t.Fatalf("%d queries, want that of those who wait, and that of requests", len(queries))
	}
	others := `nftproxy_waiting_connections{namespace="shop",service="other",instance="node-1"} 7x60
		nftproxy_waiting_connections{namespace="",service="",instance="node-1"} 7x60
		http_requests_total{namespace="shop",service="other"} 0+60x60`
	for i, c := range []struct {
		series string
		want   float64
	}{
		{`nftproxy_waiting_connections{namespace="shop",service="cart",instance="node-1"} 3x60
			nftproxy_waiting_connections{namespace="shop",service="cart",instance="node-2"} 2x60`, 5},
		{`http_requests_total{namespace="shop",service="cart",instance="pod-1"} 0+60x60
			http_requests_total{namespace="shop",service="cart",instance="pod-2"} 0+120x60`, 3},
	} {
		query := queries[i][1]
		exported.check(t, "docs/scale-to-zero.md", query)
		if got := load(t, others+"\n"+c.series).value(t, query); got != c.want {
			t.Errorf("%s: %v, want %v", query, got, c.want)
		}
		if got := load(t, others).value(t, query); got != 0 {
			t.Errorf("%s: %v without the Service, want 0", query, got)
		}
	}
}

// value returns the only value of an expression after an hour.
func (d samples) value(t *testing.T, expr string) float64 {
	t.Helper()
	query, err := engine().NewInstantQuery(context.Background(), d, nil, expr, time.UnixMilli(60*60_000))
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	vector, err := query.Exec(context.Background()).Vector()
	if err != nil || len(vector) != 1 {
		t.Fatalf("%s: %v, %v", expr, vector, err)
	}
	return vector[0].F
}
