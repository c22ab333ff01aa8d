// Package outage takes the API server of a real cluster away from its nodes for a while, under traffic of every kind, and
// says whose each failed request is: a proxy's, or the control plane's, which wrote meanwhile that a Service has no
// endpoint.
//
// What the control plane wrote comes from etcd, so no client's own delay is in it. The package changes nothing of the
// cluster that it does not change back.
package outage
