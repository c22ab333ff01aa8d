package workload

import (
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// moves are the nodes that the addresses of a load balancer are at, as clients outside see it: in their table of
// neighbours.
type moves struct {
	nodes map[string]string // by hardware address
	done  chan struct{}
	ended chan struct{}

	mu  sync.Mutex
	at  map[netip.Addr]string
	all []move
}

type move struct {
	addr     netip.Addr
	at       time.Time
	from, to string
}

// watchMoves begins to look where the addresses are.
func (b *balancer) watchMoves() (*moves, error) {
	m := &moves{nodes: map[string]string{}, done: make(chan struct{}), ended: make(chan struct{}),
		at: map[netip.Addr]string{}}
	for _, a := range b.addrs {
		m.at[a] = ""
	}
	for _, node := range b.Nodes() {
		link, err := b.NetworkOf(node).Handle().LinkByName("eth0")
		if err != nil {
			return nil, fmt.Errorf("look up the interface of %s: %w", node, err)
		}
		m.nodes[link.Attrs().HardwareAddr.String()] = node
	}
	updates := make(chan netlink.NeighUpdate, 16)
	namespace := netns.NsHandle(b.Outside.Fd())
	err := netlink.NeighSubscribeWithOptions(updates, m.done, netlink.NeighSubscribeOptions{Namespace: &namespace,
		ListExisting: true})
	if err != nil {
		return nil, fmt.Errorf("subscribe to neighbours: %w", err)
	}
	go func() {
		defer close(m.ended)
		for u := range updates {
			m.note(u.Neigh)
		}
	}()
	return m, nil
}

// note takes an entry of the table.
func (m *moves) note(n netlink.Neigh) {
	addr, _ := netip.AddrFromSlice(n.IP)
	node := m.nodes[n.HardwareAddr.String()]
	m.mu.Lock()
	defer m.mu.Unlock()
	before, wanted := m.at[addr.Unmap()]
	if !wanted || node == "" || node == before {
		return
	}
	if m.at[addr.Unmap()] = node; before != "" {
		m.all = append(m.all, move{addr.Unmap(), time.Now(), before, node})
	}
}

// nodeOf is the node that an address is at; "" if that is not known.
func (m *moves) nodeOf(a netip.Addr) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at[a]
}

// stop ends the watch and returns the moves.
func (m *moves) stop() []move {
	close(m.done)
	<-m.ended
	return m.all
}

// reportAfter says of each address how many requests failed or were slow that began when the address had moved for the
// last time.
func (l *lossLoad) reportAfter(out io.Writer, all []move, began time.Time) error {
	for i, to := range l.to {
		var last time.Time
		for _, m := range all {
			if m.addr == to.Addr() {
				last = m.at
			}
		}
		if last.IsZero() {
			return fmt.Errorf("%v has not moved", to.Addr())
		}
		requests, hurt := 0, 0
		for _, r := range l.all {
			if r.clients == l.clients("new", i) && r.began.After(last) {
				requests++
				hurt += boolInt(r.err != nil || r.slow())
			}
		}
		fmt.Fprintf(out, "# %s: %d of %d that began after the last move of %v, at %v, were slow or failed\n",
			l.clients("new", i), hurt, requests, to.Addr(), last.Sub(began).Round(time.Millisecond))
	}
	return nil
}
