package main

import (
	"errors"
	"fmt"
	"time"

	"nftproxy/test/cmd/soak/script"
	"nftproxy/test/lib/netfilter"
)

// full fills the node's table of connections and keeps it full for a while.
func (w *world) full(e script.Event) error {
	w.book.Drops("a full table of connections", time.Now())
	table, err := netfilter.FillTable(w.Node.Fd())
	if table == nil {
		return err
	}
	w.count.add(fmt.Sprintf("times the table of connections was full, by %d0,000 entries", table.Made/10000))
	if err == nil {
		select {
		case <-time.After(time.Duration(e.Int("ms")) * time.Millisecond):
		case <-w.ctx.Done():
		}
	}
	return errors.Join(err, table.Empty())
}
