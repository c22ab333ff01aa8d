// Package workload puts a web server with Services on a real cluster, and clients that use them: pods, nodes and
// clients outside, with new connections and with ones that stay open. A load counts every request that failed. Under it
// the package tries the cluster in three ways:
//
//   - Smoke: whether Services work as users and operators see them, while pods, nodes and the proxy come and go.
//   - TakeAPIServerAway: the API server away from its nodes for a while. It names the cause of each failed request: a
//     proxy, or the control plane, if it had written that the Service has no endpoint. What it wrote comes from etcd,
//     so no client's own delay is in it.
//   - Migrate: from kube-proxy to nftproxy and back by the commands of docs/migrate.md and no others, with mistakes
//     that operators make, and looks at what each step should have done.
//
// It changes nothing of the cluster that it does not change back.
package workload
