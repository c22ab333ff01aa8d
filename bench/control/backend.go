package control

import (
	"errors"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/test/lib/child"
)

// backend is a proxy with its peculiarities.
type backend struct {
	proxies.Proxy
	// batch recognises the log line of a write to the kernel; nil if there is none.
	batch func(child.Line) bool
	// rest is a pause after which the proxy handles a change at once.
	rest time.Duration
}

// The pauses are a little longer than the default least periods between two syncs: 10 ms
// for nftproxy and 1 s for kube-proxy.
const (
	ourRest       = 30 * time.Millisecond
	kubeProxyRest = 1100 * time.Millisecond
)

func newBackend(p proxies.Proxy) backend {
	if p.Ours {
		wrote := func(l child.Line) bool { return l.Synced() && l.Written != nil && *l.Written > 0 }
		return backend{p, wrote, ourRest}
	}
	return backend{p, proxies.KubeProxySynced, kubeProxyRest}
}

// partsOf returns the durations of the stages of a sync of nftproxy. It returns nil for
// other proxies, whose logs do not have them.
func partsOf(l child.Line, unit time.Duration) map[string]float64 {
	if !l.Synced() {
		return nil
	}
	in := func(d child.Duration) float64 { return float64(d) / float64(unit) }
	return map[string]float64{
		// The time before a turn of the loop: decoded objects become a snapshot, and
		// another goroutine takes it.
		"snapshot": in(l.Latency - l.Compile - l.Read - l.Plan - l.Apply),
		"compile":  in(l.Compile), "read": in(l.Read), "plan": in(l.Plan),
		"encode": in(l.Encode), "commit": in(l.Commit), "rest of apply": in(l.Apply - l.Encode - l.Commit),
	}
}

// joinClose adds the error of a closing function to an error.
func joinClose(err error, close func() error) error { return errors.Join(err, close()) }
