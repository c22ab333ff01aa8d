package control

import (
	"context"
	"errors"
	"os/exec"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/test/child"
	"nftproxy/test/nftcmd"
)

// backend is a proxy with what is known of its ways.
type backend struct {
	proxies.Proxy
	// batch recognises a log line about something written.
	batch func(child.Line) bool
	// rest is a pause after which the proxy takes up a change at once.
	rest time.Duration
}

// The pauses are some more than the least periods between two syncs that the
// proxies have by default: 10 ms and 1 s.
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
	in := func(d time.Duration) float64 { return float64(d) / float64(unit) }
	return map[string]float64{
		// Before a turn of the loop: what was decoded becomes a snapshot, and
		// goes from one goroutine to another.
		"snapshot": in(l.Latency - l.Compile - l.Read - l.Plan - l.Apply),
		"compile":  in(l.Compile), "read": in(l.Read), "plan": in(l.Plan),
		"encode": in(l.Encode), "commit": in(l.Commit), "rest of apply": in(l.Apply - l.Encode - l.Commit),
	}
}

// findNFT is the nft command, and its version.
func findNFT(ctx context.Context) (nftcmd.Command, string, error) {
	c, err := nftcmd.Find()
	if err != nil {
		return c, "", err
	}
	return c, proxies.FirstLine(exec.CommandContext(ctx, c.Path(), "--version")), nil
}

// joinClose adds to an error what closing says.
func joinClose(err error, close func() error) error { return errors.Join(err, close()) }
