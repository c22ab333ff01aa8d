package e2e

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
)

// scrapesFile has what a daemon served while Services and endpoints came and went: the
// data on which hack/promql draws the dashboard and tries the alerts.
const scrapesFile = "../../hack/promql/testdata/scrapes.txt"

// TestScrapes: the daemon still serves each series of the record. With -update the
// record is written again.
func TestScrapes(t *testing.T) {
	n := newNode(t)
	p := n.startProxy("--metrics-bind-address="+metricsAddress, "--healthz-bind-address="+healthAddress,
		"--nftproxy-flows=1/1")
	var record strings.Builder
	seen, last := map[string]bool{}, map[string]string{}
	scrape := func() {
		t.Helper()
		page, err := n.page(metricsAddress, "/metrics")
		n.must(err)
		fmt.Fprintf(&record, "scrape %d\n", time.Now().UnixMilli())
		for line := range strings.Lines(page) {
			// The namespace is another one in each run.
			line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), `"`+n.namespace+"/", `"shop/`)
			series, value, _ := strings.Cut(line, " ")
			if !charted(series) {
				continue
			}
			if at := strings.LastIndexByte(line, ' '); strings.Contains(series, "{") {
				series, value = line[:at], line[at+1:] // A label may have blanks.
			}
			seen[seriesWithoutHost(series)] = true
			if last[series] != value {
				last[series] = value
				fmt.Fprintf(&record, "%s %s\n", series, value)
			}
		}
	}
	n.exercise()
	// The node's own connections are followed without the time to their answers.
	client := n.addClient()
	web, err := n.plane.client.CoreV1().Services(n.namespace).Get(n.ctx, "web", metav1.GetOptions{})
	n.must(err)
	n.must(everywhere(func(protocol string, family ip.Family) error {
		_, err := n.ask(client, protocol, address(web, protocol, family))
		return err
	}))
	older, younger := simple("older"), simple("younger")
	older.Spec.ExternalIPs, younger.Spec.ExternalIPs = []string{"203.0.113.21"}, []string{"203.0.113.21"}
	n.create(older)
	scrape()
	n.create(younger)
	for i := range 5 {
		name := fmt.Sprint("more-", i)
		n.runPod(name, "web")
		p.awaitText(0, "synced")
		scrape()
		n.deletePod(name)
	}
	n.must(n.plane.client.CoreV1().Services(n.namespace).Delete(n.ctx, "younger", metav1.DeleteOptions{}))
	n.soon("the conflict is over", func() error {
		page, err := n.page(metricsAddress, "/metrics")
		if err == nil && !strings.Contains(page, "\nnftproxy_conflicting_services 0\n") {
			err = fmt.Errorf("there is a conflict")
		}
		return err
	})
	scrape()
	if flag.Lookup("update").Value.String() == "true" {
		n.must(os.WriteFile(scrapesFile, []byte(record.String()), 0o644))
	}
	recorded, err := os.ReadFile(scrapesFile)
	n.must(err)
	missing := 0
	for line := range strings.Lines(string(recorded)) {
		at := strings.LastIndexByte(line, ' ')
		if series := seriesWithoutHost(line[:at]); series != "scrape" && !seen[series] && !strings.Contains(series,
			"reason=") && !strings.Contains(series, "result=") {
			missing++
			t.Errorf("no %s", series)
		}
	}
	if len(recorded) < 1000 || missing > 0 {
		t.Errorf("the record has %d bytes, and %d of its series are missing", len(recorded), missing)
	}
	p.stop()
}

// charted says whether the dashboard or an alert may need the series.
func charted(series string) bool {
	name, _, _ := strings.Cut(series, "{")
	return slices.ContainsFunc([]string{"kubeproxy_", "nftproxy_", "rest_client_requests_total", "process_resident",
		"process_cpu"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// seriesWithoutHost leaves out the address of the API server, which differs in each run.
func seriesWithoutHost(series string) string {
	before, after, ok := strings.Cut(series, `host="`)
	if !ok {
		return series
	}
	_, after, _ = strings.Cut(after, `"`)
	return before + after
}
