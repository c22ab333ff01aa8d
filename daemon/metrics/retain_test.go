package metrics_test

import (
	"runtime"
	"testing"
	"weak"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// TestSyncNotKept: the metrics count what a sync did, and keep none of what it read.
func TestSyncNotKept(t *testing.T) {
	m := metrics.New(prometheus.NewRegistry())
	found := nft.NewModel()
	kept := weak.Make(found)
	m.Observe(proxy.Sync{Snapshot: service.Snapshot{Node: &service.Node{}}, Found: found})
	found = nil
	runtime.GC()
	if kept.Value() != nil {
		t.Error("the contents of the tables before the first sync are still in memory")
	}
	runtime.KeepAlive(m)
}
