package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// RequestListeners are what FollowRequests gives to client-go, which takes them once in
// a process.
func RequestListeners(r prometheus.Registerer) clientmetrics.RegisterOpts {
	return requestListeners(r)
}
