package kernel_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
)

// TestNextWriter: the next process that writes to the ruleset is named. What the Conn writes
// itself does not count, and the end of the context ends the wait.
func TestNextWriter(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	must(t, c.Apply(load(everything())))
	type result struct {
		kernel.Writer
		err error
	}
	found := make(chan result, 1)
	go func() {
		w, err := c.NextWriter(t.Context(), kernel.Config{NetNS: ns.Fd()})
		found <- result{w, err}
	}()
	for {
		must(t, c.Apply(nft.Batch{Ops: []nft.Op{nft.FlushChain{Table: table(nft.IPv4), Chain: "refuse"}}}))
		must(t, cmd.Load(ns, "add table ip mine; delete table ip mine"))
		select {
		case r := <-found:
			if r.err != nil || r.Name != "nft" || r.PID == 0 {
				t.Errorf("found %+v, err %v", r.Writer, r.err)
			}
		case <-time.After(10 * time.Millisecond): // until the goroutine listens
			continue
		}
		break
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.NextWriter(ctx, kernel.Config{NetNS: ns.Fd()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a writer: %v", err)
	}
	if listing := ruleset(t, cmd, ns); strings.Contains(listing, "mine") {
		t.Errorf("left behind:\n%s", listing)
	}
}
