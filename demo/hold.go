package main

import (
	"context"
	"net/netip"
	"time"

	"nftproxy/look/inspect"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/testnet"
)

// showHold has a client connect to default/lazy before that has a pod.
func showHold(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	to := netip.AddrPortFrom(lazyAddrs().V4(), servicePort)
	type result struct {
		testnet.Answer
		err error
	}
	tell("a client connects")
	start, ended := time.Now(), make(chan result, 1)
	go func() {
		a, err := w.client.NS.Ask(ctx, testnet.TCP, to, patience)
		ended <- result{a, err}
	}()
	if err := w.awaitHeld(ctx); err != nil {
		return nil, err
	}
	tell("a pod starts")
	pod, err := w.addServer("lazy")
	if err != nil {
		return nil, err
	}
	if err := w.replaceManifest(ctx, "lazy: the first endpoint", lazyEndpointsFile,
		state{lazy: []endpoint{endpointOf(pod)}}); err != nil {
		return nil, err
	}
	there := time.Since(start)
	tell("the client's kernel sends its packet again")
	got := <-ended
	if got.err != nil {
		return nil, got.err
	}
	const what = "the connection that began before there was an endpoint"
	if err := expectEqual(&w.checks, what, testnet.Answered, got.Outcome); err != nil {
		return nil, err
	}
	if err := w.expect(got.Attempts > 1, what, "more than one packet to open it", "one"); err != nil {
		return nil, err
	}
	return []block{
		chart{groups: []group{{"milliseconds after the client's first packet", []bar{
			{"the pod is in the kernel", int(there.Milliseconds())},
			{"the pod has answered", int(got.Took.Milliseconds())},
		}}}},
		textf("default/lazy had no pod (nftproxy.io/no-endpoints: hold): the client was not refused, and packet %d of its "+
			"kernel opened the connection.", got.Attempts),
	}, nil
}

// awaitHeld waits until the kernel holds a connection.
func (w *world) awaitHeld(ctx context.Context) error {
	const pause = time.Millisecond
	id := nft.TableID{Family: nft.IPv4, Name: ruleset.DefaultTable}
	for ctx.Err() == nil {
		waits := false
		if err := inspect.EachHeld(w.tables, id, func(ruleset.Place) (ruleset.Reach, bool) {
			return ruleset.Reach{Holds: true}, true
		}, func(ruleset.Place, time.Duration) { waits = true }); err != nil || waits {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return context.Cause(ctx)
}
