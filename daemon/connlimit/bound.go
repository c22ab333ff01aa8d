package connlimit

import (
	"container/heap"
	"container/list"
	"net/netip"
	"sync"
)

// Bound counts open connections. Several listeners may share one. The work for a connection or a request grows
// with the logarithm of the number of clients.
type Bound struct {
	all, client int

	mu      sync.Mutex
	open    int
	turn    uint64 // the number of the last change, which orders places by age
	clients map[netip.Prefix]*holder
	ranking ranking
}

// New makes a bound for all clients and for each; both are above 0. A client is an address of IPv4, or the 64 bits
// of an address of IPv6 that one machine may have all to itself.
func New(all, client int) *Bound {
	return &Bound{all: all, client: client, clients: map[netip.Prefix]*holder{}}
}

// place is what a connection has in a bound.
type place struct {
	bound  *Bound
	conn   *conn
	holder *holder
	// in is the list of the holder that has the place, or nil if it was given back; at is where.
	in   *list.List
	at   *list.Element
	turn uint64 // of the last request, or of its answer
}

// holder is a client with connections. Its lists have the oldest place in front.
type holder struct {
	client     netip.Prefix
	idle, busy list.List // of *place
	rank       int       // in the ranking
}

func (h *holder) count() int { return h.idle.Len() + h.busy.Len() }

// first is the place that the holder would lose.
func (h *holder) first() *place {
	front := h.idle.Front()
	if front == nil {
		front = h.busy.Front()
	}
	return front.Value.(*place)
}

// room returns the connection to close for a new one of a client, or nil if there is a place without, or false
// if the new one must not be admitted. Those that leave anyway count no more.
func (b *Bound) room(client netip.Prefix, leaving []*conn) (*conn, bool) {
	own, open, count := b.clients[client], b.open, 0
	if own != nil {
		count = own.count()
	}
	for _, v := range leaving {
		for _, p := range v.places {
			if p.bound == b && p.in != nil {
				open--
				if p.holder == own {
					count--
				}
			}
		}
	}
	switch {
	case open < b.all && count < b.client:
		return nil, true
	case count < b.client && b.ranking[0].count() > count:
		return b.ranking[0].first().conn, true
	case own != nil && own.idle.Len() > 0:
		return own.first().conn, true
	}
	return nil, false
}

func (b *Bound) add(c *conn) *place {
	h := b.clients[c.client]
	if h == nil {
		h = &holder{client: c.client}
		b.clients[c.client] = h
	}
	p := &place{bound: b, conn: c, holder: h}
	b.open++
	b.push(p, &h.busy)
	if h.count() == 1 {
		heap.Push(&b.ranking, h)
	} else {
		heap.Fix(&b.ranking, h.rank)
	}
	return p
}

// push makes a place the youngest of a list.
func (b *Bound) push(p *place, in *list.List) {
	b.turn++
	p.turn, p.in, p.at = b.turn, in, in.PushBack(p)
}

// move notes that the connection of a place began to wait for a request, or has one.
func (b *Bound) move(p *place, idle bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.in == nil {
		return
	}
	p.in.Remove(p.at)
	in := &p.holder.busy
	if idle {
		in = &p.holder.idle
	}
	b.push(p, in)
	heap.Fix(&b.ranking, p.holder.rank)
}

func (b *Bound) give(p *place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.in != nil {
		b.remove(p)
	}
}

func (b *Bound) remove(p *place) {
	h := p.holder
	p.in.Remove(p.at)
	p.in = nil
	b.open--
	if h.count() > 0 {
		heap.Fix(&b.ranking, h.rank)
		return
	}
	heap.Remove(&b.ranking, h.rank)
	delete(b.clients, h.client)
}

// ranking is a heap. Its first holder is the one to lose a place: it has most, or of several such the oldest.
type ranking []*holder

func (r ranking) Len() int { return len(r) }

func (r ranking) Less(i, j int) bool {
	if a, b := r[i].count(), r[j].count(); a != b {
		return a > b
	}
	if a, b := r[i].idle.Len() > 0, r[j].idle.Len() > 0; a != b {
		return a
	}
	return r[i].first().turn < r[j].first().turn
}

func (r ranking) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].rank, r[j].rank = i, j
}

// Push is for heap.Push.
func (r *ranking) Push(h any) {
	h.(*holder).rank = len(*r)
	*r = append(*r, h.(*holder))
}

// Pop is for heap.Remove.
func (r *ranking) Pop() any {
	last := len(*r) - 1
	h := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return h
}
