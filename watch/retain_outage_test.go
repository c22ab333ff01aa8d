package watch

import (
	"strings"
	"testing"
	"time"
)

// TestRetainWhileAway: the API server sends empty lists and goes away for long. Nothing is
// removed before it has answered for a minute.
func TestRetainWhileAway(t *testing.T) {
	withLists(t, 20, func(l *lists) {
		l.answer()
		l.list(0, 0)
		l.change(func(*index) { l.outage.failed("services", false, nil) })
		time.Sleep(time.Hour)
		l.want("an hour later", services(20), 20)
		if got := l.Retained().String(); !strings.HasSuffix(got, "at least until it answers again") {
			t.Errorf("said: %s", got)
		}
		l.change(func(*index) { l.outage.current("services") })
		time.Sleep(time.Minute - time.Second)
		l.want("nearly a minute after the return", services(20), 20)
		time.Sleep(time.Second)
		l.want("a minute after the return", nil, 0)
	})
}

// answer brings the resources up to date that the proxy cannot work without.
func (l *lists) answer() {
	l.change(func(*index) {
		for _, resource := range []string{"services", "endpointslices"} {
			l.outage.require(resource)
			l.outage.current(resource)
		}
	})
}

// TestRetainWhileRefused: after an outage the API server has Services and EndpointSlices
// again, and refuses ServiceCIDRs or the Node for good. What is retained goes in the end.
func TestRetainWhileRefused(t *testing.T) {
	for _, refused := range []string{"servicecidrs", "nodes"} {
		withLists(t, 20, func(l *lists) {
			l.answer()
			l.change(func(*index) { l.outage.current(refused) })
			l.list(0, 0)
			l.change(func(*index) {
				for _, resource := range []string{"services", "endpointslices", refused} {
					l.outage.failed(resource, false, nil)
				}
			})
			time.Sleep(time.Hour)
			l.change(func(*index) {
				l.outage.current("services")
				l.outage.failed(refused, true, nil)
			})
			time.Sleep(time.Hour)
			l.want("without EndpointSlices", services(20), 20)
			l.change(func(*index) { l.outage.current("endpointslices") })
			time.Sleep(time.Minute)
			l.want(refused+" are refused", nil, 0)
		})
	}
}
