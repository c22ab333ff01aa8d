package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"

	"nftproxy/daemon/metrics"
	"nftproxy/watch"
)

const (
	// versionPeriod is the time between two questions for the API server's version, which
	// changes when the cluster is upgraded. It is shorter than the 15 minutes after which
	// the alert KubeVersionMismatch of kubernetes-mixin fires.
	versionPeriod = 5 * time.Minute
	// versionRetry is the time after a question without an answer.
	versionRetry = 10 * time.Second
	// versionTimeout bounds the wait for an answer, which may begin with the search for an address.
	versionTimeout = lookupLimit + 10*time.Second
)

// followServerVersion keeps the metric of the API server's version until the context
// ends. No behaviour depends on the version, so failures are debug lines.
// note gets the words for /readyz where the server is older than those that nftproxy is made for, which is logged once.
func (d *daemon) followServerVersion(ctx context.Context, client *watch.Client, counts *metrics.Metrics, note *atomic.Value) error {
	if client == nil {
		return nil // manifests
	}
	for {
		pause := versionPeriod
		info, err := serverVersion(ctx, client)
		if err == nil {
			counts.SetKubernetesVersion(info)
			outside := outsideRange(info)
			if before := note.Swap(outside); outside != "" && before != outside {
				d.log.Warn("the API server is older than those that nftproxy is made for", "version", info.GitVersion, "oldest", fmt.Sprintf("1.%d", oldestServer))
			}
		} else if ctx.Err() == nil {
			pause = versionRetry
			d.log.Debug("cannot ask the API server for its version", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause + rand.N(pause/5)): // Nodes that start together ask at different times.
		}
	}
}

func serverVersion(ctx context.Context, client *watch.Client) (apiversion.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	var info apiversion.Info
	body, err := client.CoreV1().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return info, err
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return info, fmt.Errorf("read the API server's version: %w", err)
	}
	return info, nil
}
