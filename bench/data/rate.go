package data

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"nftproxy/test/lib/testnet"
)

// mostThreads bounds the clients that connect at once: what they make between
// two drains must fit into the listener's backlog.
const mostThreads = 8

// rate opens connections one after the other on each core, for some time, and
// returns how many there were in a second.
func rate(ns *testnet.Namespace, to netip.AddrPort, most time.Duration) (float64, error) {
	threads := min(runtime.NumCPU(), mostThreads)
	perSecond := make([]float64, threads)
	var group errgroup.Group
	var ready sync.WaitGroup
	start := make(chan struct{})
	for i := range threads {
		ready.Add(1)
		there := sync.OnceFunc(ready.Done)
		group.Go(func() error {
			defer there() // a thread that fails must not keep the others waiting
			return ns.Do(func() (err error) {
				there()
				<-start
				return undisturbed(func() error {
					perSecond[i], err = connections(newClient(to), most)
					return err
				})
			})
		})
	}
	ready.Wait()
	close(start)
	if err := group.Wait(); err != nil {
		return 0, fmt.Errorf("connect to %v from %s: %w", to, ns, err)
	}
	sum := 0.0
	for _, r := range perSecond {
		sum += r
	}
	return sum, nil
}

// connections opens connections for some time, and returns how many there were
// in a second.
func connections(c *client, most time.Duration) (float64, error) {
	start := time.Now()
	for n := 0; ; n++ {
		if took := time.Since(start); took >= most {
			return float64(n) / took.Seconds(), nil
		}
		if _, err := c.once(); err != nil {
			return 0, err
		}
	}
}
