package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"nftproxy/daemon/metrics"
)

func TestSLIs(t *testing.T) {
	s := metrics.NewSLIs()
	s.Observe("ping", "healthz", true)
	s.Observe("proxy", "livez", false)
	s.Observe("proxy", "livez", true)
	s.Observe("proxy", "livez", false)
	const want = `
# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.
# TYPE kubernetes_healthcheck gauge
kubernetes_healthcheck{name="ping",type="healthz"} 1
kubernetes_healthcheck{name="proxy",type="livez"} 0
# HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.
# TYPE kubernetes_healthchecks_total counter
kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1
kubernetes_healthchecks_total{name="proxy",status="error",type="livez"} 2
kubernetes_healthchecks_total{name="proxy",status="success",type="livez"} 1
`
	if err := testutil.GatherAndCompare(s.Gatherer(), strings.NewReader(want), "kubernetes_healthcheck",
		"kubernetes_healthchecks_total"); err != nil {
		t.Error(err)
	}
	s.Reset()
	if n, err := testutil.GatherAndCount(s.Gatherer()); n != 1 || err != nil { // the start of the process
		t.Errorf("%d metrics after a reset, err %v", n, err)
	}
}
