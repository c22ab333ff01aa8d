package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/chance"
	"nftproxy/test/lib/testnet"
)

// jobsPods is the number of pods of default/jobs, and fewSlots the most slots that the busy one of them keeps of
// allSlots: it has 16 at first.
const jobsPods, fewSlots, allSlots = 3, 8, 48

// showLeast has one pod of default/jobs hold connections, and shows who gets new ones.
func showLeast(ctx context.Context, w *world, tell tellFunc) (result []block, err error) {
	const held, asked = 60, 600
	to := netip.AddrPortFrom(jobsAddrs().V4(), servicePort)
	var pods []*testnet.Pod
	var endpoints []endpoint
	for i := range jobsPods {
		pod, err := w.addServer(fmt.Sprintf("jobs-%d", i+1))
		if err != nil {
			return nil, err
		}
		pods, endpoints = append(pods, pod), append(endpoints, endpointOf(pod))
	}
	if err := w.replaceManifest(ctx, "jobs: the first pod", jobsEndpointsFile, state{jobs: endpoints[:1]}); err != nil {
		return nil, err
	}
	tell("%d connections stay open", held)
	for range held {
		s, err := openSession(ctx, w.client.NS, to)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.close()) }()
	}
	if err := w.replaceManifest(ctx, "jobs: two more pods", jobsEndpointsFile, state{jobs: endpoints}); err != nil {
		return nil, err
	}
	tell("nftproxy counts connections once a second")
	start := time.Now()
	if err := w.awaitSlots(ctx, netip.AddrPortFrom(pods[0].Addrs.V4(), podPort)); err != nil {
		return nil, err
	}
	took := time.Since(start)
	tell("new connections")
	answers, err := askMany(ctx, w.client.NS, testnet.TCP, to, asked)
	if err != nil {
		return nil, err
	}
	counts := count(answers)
	open, fresh := group{title: "open connections"}, group{title: fmt.Sprintf("%d new connections", asked)}
	for i, pod := range pods {
		of := 0
		if i == 0 {
			of = held
		}
		open.bars, fresh.bars = append(open.bars, bar{pod.Name, of}), append(fresh.bars, bar{pod.Name, counts[pod.Name]})
	}
	_, most := chance.Range(asked, float64(fewSlots)/allSlots)
	got := counts[pods[0].Name]
	return []block{
		chart{beside: 2, groups: []group{open, fresh}},
		textf("default/jobs has nftproxy.io/balance: least-connections. Within %.0f s %s had a sixth of the new connections "+
			"or less, instead of a third.", took.Seconds()+0.5, pods[0].Name),
	}, w.expect(got <= most, "new connections to the busy pod", fmt.Sprintf("at most %d", most), fmt.Sprint(got))
}

// awaitSlots waits until an endpoint of default/jobs has few slots.
func (w *world) awaitSlots(ctx context.Context, busy netip.AddrPort) error {
	const pause = 20 * time.Millisecond
	want := w.programs[len(w.programs)-1]
	at := service.PortEndpoint{Protocol: service.TCP, Port: servicePort, Addr: busy}
	for ctx.Err() == nil {
		have, err := w.tables.Read(want)
		if err != nil {
			return fmt.Errorf("read tables: %w", err)
		}
		slots, has := ruleset.ReadSlots(have, ruleset.DefaultTable, w.asked.Node)["default/jobs"][at]
		if has && slots.Cluster <= fewSlots {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return context.Cause(ctx)
}
