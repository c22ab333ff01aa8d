package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"nftproxy/test/lib/testnet"
)

// slowness is how long the pod of default/slow takes for each answer.
const slowness = 200 * time.Millisecond

// call is what a client does in showFlows.
type call struct {
	client, service string
	to              netip.AddrPort
	n               int
}

func calls() []call {
	slow := netip.AddrPortFrom(slowAddrs().V4(), servicePort)
	empty := netip.AddrPortFrom(emptyAddrs().V4(), servicePort)
	return []call{{"shop", "default/slow", slow, 8}, {"search", "default/slow", slow, 4},
		{"search", "default/empty", empty, 4}, {"mail", "default/empty", empty, 6}}
}

// showFlows has three clients connect to two Services, of which one is slow and one refuses, and shows what nftproxy
// has seen of them.
func showFlows(ctx context.Context, w *world, tell tellFunc) (result []block, err error) {
	stop, err := w.serveSlowly(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	tell("starting nftproxy with --nftproxy-flows=1/1")
	if err := w.proxy.stop(); err != nil {
		return nil, err
	}
	if err := w.launch("--nftproxy-flows=1/1"); err != nil {
		return nil, err
	}
	if err := w.proxy.awaitFollowing(ctx); err != nil {
		return nil, err
	}
	tell("connections")
	names := map[netip.Addr]string{}
	for _, pod := range []string{"shop", "search", "mail", slowPod} {
		names[w.net.Pod(pod).Addrs.V4()] = pod
	}
	var group errgroup.Group
	for _, c := range calls() {
		for range c.n {
			group.Go(func() error {
				_, err := w.net.Pod(c.client).NS.Ask(ctx, testnet.UDP, c.to, patience)
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	edges, err := w.edges(ctx, names)
	if err != nil {
		return nil, err
	}
	t := table{head: []string{"client", "", "Service", "", "pod", "count", "result", "answer"}, numbers: 7}
	for _, c := range calls() {
		e := edges[c.client+" "+c.service]
		what := fmt.Sprintf("connections from %s to %s that nftproxy has seen", c.client, c.service)
		if err := expectEqual(&w.checks, what, c.n, len(e.seconds)); err != nil {
			return nil, err
		}
		row := []string{c.client, "-->", strings.TrimPrefix(c.service, "default/"), "--x", "", fmt.Sprint(c.n), e.result, "-"}
		if c.service == "default/slow" {
			slices.Sort(e.seconds)
			median := time.Duration(e.seconds[len(e.seconds)/2] * float64(time.Second))
			// The first packet may get its time a little later than it came.
			if err := w.expect(median > slowness/2, "time to the first answer", "about "+ms(slowness), ms(median)); err != nil {
				return nil, err
			}
			row[3], row[4], row[7] = "-->", e.endpoint, ms(median)
		}
		t.rows = append(t.rows, row)
	}
	return []block{
		t,
		text("With --nftproxy-flows, nftproxy flows shows each connection; --result refused and --from find those that " +
			"matter. Clients and pods need no change."),
	}, nil
}

// slowPod is the pod of default/slow.
const slowPod = "slow-1"

// serveSlowly makes the clients and the slow pod, which serves UDP until stop.
func (w *world) serveSlowly(ctx context.Context) (stop func() error, err error) {
	for _, name := range []string{"shop", "search", "mail", slowPod} {
		if _, err := w.net.AddPod(name); err != nil {
			return nil, err
		}
	}
	pod := w.net.Pod(slowPod)
	conn, err := pod.NS.ListenPacket(ctx, "udp", netip.AddrPortFrom(pod.Addrs.V4(), podPort).String())
	if err != nil {
		return nil, err
	}
	var group errgroup.Group
	group.Go(func() error { return answerSlowly(conn, &group) })
	stop = func() error { return errors.Join(conn.Close(), group.Wait()) }
	if err := w.replaceManifest(ctx, "slow: 1 endpoint", slowEndpointsFile,
		state{slow: []endpoint{endpointOf(pod)}}); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// answerSlowly answers until the socket is closed.
func answerSlowly(conn net.PacketConn, group *errgroup.Group) error {
	b := make([]byte, 100)
	for {
		_, from, err := conn.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		group.Go(func() error {
			<-time.After(slowness)
			_, err := conn.WriteTo(fmt.Appendf(nil, "%s %v\n", slowPod, from), from)
			if errors.Is(err, net.ErrClosed) {
				return nil // Nobody waits any more.
			}
			return err
		})
	}
}

// edge is what nftproxy has seen between a client and a Service.
type edge struct {
	endpoint, result string
	// seconds are the times to the first answer, 0 for none, of all connections.
	seconds []float64
}

// edges asks nftproxy for the flows until all results are known. Addresses in names become the names.
func (w *world) edges(ctx context.Context, names map[netip.Addr]string) (map[string]*edge, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	want := 0
	for _, c := range calls() {
		want += c.n
	}
	for {
		edges, known, err := w.readEdges(ctx, names)
		if err != nil || known >= want {
			return edges, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, &mismatch{"nftproxy flows", fmt.Sprintf("%d connections", want), fmt.Sprint(known)}
		}
	}
}

// readEdges also says of how many connections the result is known.
func (w *world) readEdges(ctx context.Context, names map[netip.Addr]string) (map[string]*edge, int, error) {
	var out strings.Builder
	cmd := exec.CommandContext(ctx, w.config.Executable, "flows", "--last", "0", "-o", "json")
	cmd.Stdout = &out
	if err := w.net.Node.Run(cmd); err != nil {
		return nil, 0, fmt.Errorf("run nftproxy flows: %w", err)
	}
	var answer struct {
		Flows []struct {
			Client, Endpoint       netip.AddrPort
			Service, Result, Cause string
			AnswerSeconds          float64
		}
	}
	if err := json.Unmarshal([]byte(out.String()), &answer); err != nil {
		return nil, 0, fmt.Errorf("read what nftproxy flows prints: %w", err)
	}
	edges, known := map[string]*edge{}, 0
	for _, f := range answer.Flows {
		id := names[f.Client.Addr()] + " " + f.Service
		if edges[id] == nil {
			edges[id] = &edge{}
		}
		e := edges[id]
		e.endpoint, e.seconds = names[f.Endpoint.Addr()], append(e.seconds, f.AnswerSeconds)
		if e.result = strings.TrimSuffix(f.Result+": "+f.Cause, ": "); f.Result != "waiting" {
			known++
		}
	}
	return edges, known, nil
}
