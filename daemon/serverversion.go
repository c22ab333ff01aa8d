package daemon

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"nftproxy/daemon/metrics"
	"nftproxy/watch"
)

const (
	// versionPeriod is the time between two questions for the API server's version, which changes when the cluster is
	// upgraded. It is shorter than the 15 minutes after which the alert KubeVersionMismatch of kubernetes-mixin fires.
	versionPeriod = 5 * time.Minute
	// versionRetry is the time after a question without an answer.
	versionRetry = 10 * time.Second
)

// serverVersion knows whether the API server is older than those that nftproxy is made for.
type serverVersion struct {
	reporter
	client  *watch.Client
	counts  *metrics.Metrics
	outside atomic.Pointer[string]
}

// note has the words for /readyz; empty if the server is not older, or not known.
func (s *serverVersion) note() string {
	if outside := s.outside.Load(); outside != nil {
		return *outside
	}
	return ""
}

// follow keeps the metric of the API server's version until the context ends. No behaviour depends on the version, so
// failures are debug lines. An older server is logged once.
func (s *serverVersion) follow(ctx context.Context) error {
	for {
		pause := versionPeriod
		info, err := watch.ServerVersion(ctx, s.client)
		if err == nil {
			s.counts.SetKubernetesVersion(info)
			outside, before := watch.OutsideRange(info), s.note()
			s.outside.Store(&outside)
			if outside != "" && outside != before {
				s.log.Warn("the API server is older than those that nftproxy is made for", "version", info.GitVersion, "oldest",
					fmt.Sprintf("1.%d", watch.OldestServer))
			}
		} else if ctx.Err() == nil {
			pause = versionRetry
			s.log.Debug("cannot ask the API server for its version", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause + rand.N(pause/5)): // Nodes that start together ask at different times.
		}
	}
}
