// Package outage takes the API server of a real cluster away from its nodes for a while, under traffic of every kind, and
// names the cause of each failed request: a proxy, or the control plane, if it had written that the Service has no
// endpoint.
//
// What the control plane wrote comes from etcd, so no client's own delay is in it. The package changes nothing of the
// cluster that it does not change back.
package outage
