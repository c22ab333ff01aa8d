package health

import (
	"encoding/binary"
	"math"
	"net/netip"
	"sync"

	"nftproxy/model/treap"
)

// Bound counts open connections. Several listeners may share one. The work for a connection or a request grows
// with the logarithm of the number of clients.
type Bound struct {
	all, client int

	mu      sync.Mutex
	open    int
	turn    uint64 // the number of the last change, which orders places by age
	clients map[netip.Prefix]*holder
	// ranking has the clients by their ranks. The first one is to lose a place: it has most, or of several such the
	// one with the first place.
	ranking treap.Map[string, *holder]
}

// NewBound makes a bound for all clients and for each; both are above 0. A client is an address of IPv4, or the 64 bits
// of an address of IPv6 that one machine may have all to itself.
func NewBound(all, client int) *Bound {
	return &Bound{all: all, client: client, clients: map[netip.Prefix]*holder{}}
}

// place is what a connection has in a bound.
type place struct {
	bound  *Bound
	conn   *conn
	holder *holder
	// key sorts the places of a holder: those that wait for a request come first, and of these, and of the others,
	// the one whose last request or answer is the oldest. It is empty if the place was given back.
	key string
}

// The first byte of a key.
const idle, busy = "0", "1"

// holder is a client with connections.
type holder struct {
	client netip.Prefix
	places treap.Map[string, *place]
	rank   string // the key in the ranking
}

// first is the place that the holder would lose.
func (h *holder) first() *place {
	_, p, _ := h.places.First()
	return p
}

// room returns the connection to close for a new one of a client, or nil if there is a place without, or false
// if the new one must not be admitted. Those that leave anyway count no more.
func (b *Bound) room(client netip.Prefix, leaving []*conn) (*conn, bool) {
	own, open, count := b.clients[client], b.open, 0
	if own != nil {
		count = own.places.Len()
	}
	for _, v := range leaving {
		for _, p := range v.places {
			if p.bound == b && p.key != "" {
				open--
				if p.holder == own {
					count--
				}
			}
		}
	}
	_, most, _ := b.ranking.First()
	switch {
	case open < b.all && count < b.client:
		return nil, true
	case count < b.client && most.places.Len() > count:
		return most.first().conn, true
	case own != nil && own.first().key[:1] == idle:
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
	b.put(p, busy)
	return p
}

// put makes a place the youngest of the idle or the busy ones.
func (b *Bound) put(p *place, state string) {
	b.turn++
	p.holder.places = p.holder.places.Delete(p.key)
	p.key = string(binary.BigEndian.AppendUint64([]byte(state), b.turn))
	p.holder.places = p.holder.places.Set(p.key, p)
	b.rank(p.holder)
}

// rank moves a holder to its place in the ranking, after a change of its places.
func (b *Bound) rank(h *holder) {
	b.ranking = b.ranking.Delete(h.rank)
	if h.places.Len() == 0 {
		delete(b.clients, h.client)
		return
	}
	h.rank = string(binary.BigEndian.AppendUint32(nil, math.MaxUint32-uint32(h.places.Len()))) + h.first().key
	b.ranking = b.ranking.Set(h.rank, h)
}

// move notes that the connection of a place began to wait for a request, or has one.
func (b *Bound) move(p *place, state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.key != "" {
		b.put(p, state)
	}
}

func (b *Bound) give(p *place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.key != "" {
		b.remove(p)
	}
}

func (b *Bound) remove(p *place) {
	p.holder.places = p.holder.places.Delete(p.key)
	p.key = ""
	b.open--
	b.rank(p.holder)
}
