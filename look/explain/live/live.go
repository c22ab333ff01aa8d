// Package live gives explanations of this node's kernel as it is now. It gathers what package explain
// needs: nftproxy's tables, the clients that they remember, routes, and the base chains of all programs.
//
// It changes nothing, and needs CAP_NET_ADMIN. It works in the network namespace of the calling thread, so a
// caller that has changed threads' namespaces locks its thread. It does not ask for objects of the cluster.
package live

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"nftproxy/look/basechain"
	"nftproxy/look/explain"
	"nftproxy/look/inspect"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ejecttable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/forwarding"
	"nftproxy/node/hostaddr"
)

// Node is what the kernel had when Look read it. Explain may ask it for routes and remembered clients.
type Node struct {
	// facts are those that do not depend on the packet.
	facts explain.Facts
	// asked are the tables of all nftproxies in the order in which the kernel asks them, if there are several.
	asked []askedTable

	conn *kernel.Conn
	// lookup asks the kernel for a route, and routes has the answers.
	lookup func(netip.Addr) (hostaddr.Route, error)
	routes map[netip.Addr]hostaddr.Route
	// has says whether an interface has an address.
	has func(device string, a netip.Addr) (bool, error)
	// own are the addresses of the node's interfaces. guessed says that local has gone by them.
	own     map[netip.Addr]bool
	guessed bool
	// settings are read, and neighbours asked for, where an explanation comes to an endpoint.
	settings   *forwarding.Settings
	neighbours map[link]*forwarding.Neighbours
	failed     error
}

// maxRoutes is the number of addresses up to which local asks the kernel for their routes. A Service can have
// tens of thousands of endpoints.
const maxRoutes = 256

// Look reads the kernel. The caller closes the Node. It looks at ctx from one kind of object to the next.
func Look(ctx context.Context, table string) (*Node, error) {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	n := &Node{conn: conn, lookup: hostaddr.Lookup, has: hostaddr.Has, routes: map[netip.Addr]hostaddr.Route{},
		own: map[netip.Addr]bool{}}
	n.neighbours = map[link]*forwarding.Neighbours{}
	if err := n.read(ctx, table); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return n, nil
}

func (n *Node) read(ctx context.Context, table string) error {
	addrs, err := hostaddr.List(ctx)
	if err != nil {
		return err
	}
	for _, a := range addrs.Own {
		n.own[a] = true
	}
	want := ruleset.Compile(ruleset.Config{Table: table}, service.Snapshot{Node: &service.Node{}})
	tables, err := n.conn.Read(want)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("read the kernel's tables: %w", err)
	}
	chains, err := basechain.List()
	if err != nil {
		return err
	}
	adjustments, err := ejecttable.Read(table)
	if err != nil {
		return err
	}
	n.facts = explain.Facts{Tables: tables, Table: table, Local: n.local, Way: n.way, Hop: n.hop, Unasked: n.unasked,
		Chains: chains, Adjustments: adjustments}
	own, err := n.conn.Tables(table)
	if err != nil {
		return err
	}
	n.facts.NoOwner = slices.ContainsFunc(own, kernel.TableInfo.Orphan)
	n.asked, err = n.readOthers(own)
	return err
}

// Tables are nftproxy's tables, without the clients that they remember.
func (n *Node) Tables() *nft.Model { return n.facts.Tables }

// Ignore says which EndpointSlice of the objects does not count.
func (n *Node) Ignore(s explain.IgnoredSlice) { n.facts.Ignored = append(n.facts.Ignored, s) }

// Close lets go of the kernel.
func (n *Node) Close() error { return n.conn.Close() }

// Explain explains one packet. objects are the Services by a source of objects, nil for none, and problems says what
// cannot be used of a Service there.
func (n *Node) Explain(ctx context.Context, q explain.Question, objects *service.Snapshot,
	problems func(service.Name) []string, source string) (explain.Explanation, error) {
	of, err := n.answering(ctx, q)
	if err != nil {
		return explain.Explanation{}, err
	}
	f := of.facts
	f.Objects, f.Problems, f.Source = objects, problems, source
	expires, err := of.readClients(ctx, q)
	if err != nil {
		return explain.Explanation{}, err
	}
	f.Expires = func(set string, client nft.Value) time.Duration { return expires[clientKey{set, client}] }
	f.Held = func(at ruleset.Place) string { return of.held(q, at) }
	e, err := explain.Explain(ctx, q, &f)
	if err != nil {
		return explain.Explanation{}, err
	}
	if q.Guessed {
		if e.Elsewhere, err = of.elsewhere(ctx, q, &e); err != nil {
			return explain.Explanation{}, err
		}
	}
	if n.guessed {
		e.Notes = append(e.Notes, fmt.Sprintf("there are many endpoints: beyond %d addresses, the addresses of interfaces "+
			"say which ones are the node's own, not routes", maxRoutes))
	}
	return e, n.failed
}

// elsewhere looks at the packet from the other kinds of clients.
func (n *Node) elsewhere(ctx context.Context, q explain.Question, e *explain.Explanation) ([]explain.Client, error) {
	to := q.Packet.Dst
	list := []explain.Client{}
	clients := []explain.Origin{{Node: true}, {Addr: ip.Of(to.Addr()).Example()}}
	if contents := n.contentsFor(to.Addr()); contents != nil {
		if pod, known := n.localPod(contents); known {
			clients = append(clients, explain.Origin{Addr: pod})
		}
	}
	for _, from := range clients {
		other, err := n.Ask(from, explain.Destination{To: to, Protocol: q.Packet.Protocol})
		if err != nil {
			return nil, err
		}
		if other.Packet.Src == q.Packet.Src {
			continue
		}
		if _, err := n.readClients(ctx, other); err != nil {
			return nil, err
		}
		c, err := explain.Brief(ctx, other, &n.facts)
		if err != nil {
			return nil, err
		}
		if c.Summary != e.Summary {
			list = append(list, c)
		}
	}
	return list, nil
}

type clientKey struct {
	set    string
	client nft.Value
}

// readClients puts into the model the remembered clients of those maps that the packet's rules ask, and returns
// when they expire.
func (n *Node) readClients(ctx context.Context, q explain.Question) (map[clientKey]time.Duration, error) {
	expires := map[clientKey]time.Duration{}
	contents := n.contentsFor(q.Packet.Dst.Addr())
	if contents == nil {
		return expires, nil
	}
	ways, _ := n.facts.Tables.Ways(ctx, q.Packet, n.local)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("follow the packet through the rules: %w", err)
	}
	asked := map[string]*nft.SetContents{}
	for _, w := range ways {
		for _, s := range w.Steps {
			for _, l := range s.Lookups {
				if l.Set.Dynamic && len(l.Set.Data) > 0 {
					asked[l.Set.Name] = contents.Sets[l.Set.Name]
				}
			}
		}
	}
	for name, set := range asked {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		entries, err := n.conn.Learned(contents.Table, set.Set)
		if err != nil {
			return nil, fmt.Errorf("read the remembered clients: %w", err)
		}
		clear(set.Elements)
		for _, e := range entries {
			set.Elements[e.Key] = nft.Element{Set: name, Key: e.Key, Data: e.Data}
			expires[clientKey{name, e.Key}] = e.Expires
		}
	}
	return expires, nil
}

// held says how many connections to a frontend, which the packet asks, are held.
func (n *Node) held(q explain.Question, at ruleset.Place) string {
	var held inspect.Held
	contents := n.contentsFor(q.Packet.Dst.Addr())
	err := inspect.EachHeld(n.conn, contents.Table,
		func(p ruleset.Place) (r ruleset.Reach, found bool) {
			r, found = ruleset.ReachAt(contents, p)
			r.Holds = p == at
			return r, found
		},
		func(_ ruleset.Place, waited time.Duration) { held.Add(waited) })
	n.failed = errors.Join(n.failed, err)
	return held.String()
}

// contentsFor returns the table for packets to an address; nil if there is none.
func (n *Node) contentsFor(a netip.Addr) *nft.Contents {
	return n.facts.Tables.Table(nft.TableID{Family: ip.Of(a), Name: n.facts.Table})
}

// route asks the kernel once for each address.
func (n *Node) route(a netip.Addr) hostaddr.Route {
	r, known := n.routes[a]
	if !known {
		var err error
		r, err = n.lookup(a)
		n.failed = errors.Join(n.failed, err)
		n.routes[a] = r
	}
	return r
}

// local says whether an address is the node's own.
func (n *Node) local(a netip.Addr) bool {
	if _, known := n.routes[a]; known || len(n.routes) < maxRoutes {
		return n.route(a).Local
	}
	n.guessed = true
	return n.own[a] || a.IsLoopback()
}

// way says how packets get to an address.
func (n *Node) way(a netip.Addr) string {
	r := n.route(a)
	switch {
	case r.Device == "":
		return ""
	case r.Via.IsValid():
		return fmt.Sprintf("by %s, via %s", r.Device, r.Via)
	}
	return "by " + r.Device
}
