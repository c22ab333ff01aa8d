package kernel_test

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/testnet"
)

// Every client stays with the endpoint of its first connection, wherever that is, until
// the map forgets the client.
func TestAffinity(t *testing.T) {
	n := newAffinityNet(t, 100)
	everyAffinity(t, n, func(t *testing.T, f nft.Family, proto string) {
		for _, client := range slices.Sorted(maps.Keys(n.clients)) {
			seen := map[string]bool{}
			for forgotten := 0; len(seen) < len(n.servers); forgotten++ {
				if forgotten == 200 { // 4 * (3/4)^200: never
					t.Fatalf("%s has only seen %v", client, seen)
				}
				n.forgetClients(t, f)
				id := n.answererOf(t, client, proto, f, anyServer)
				want := map[nft.Value]nft.Value{n.clientKey(client, proto, f, anyServer): n.endpointValue(f, id)}
				if diff := cmp.Diff(want, learnt(t, n.c, f, n.affinityMap(f))); diff != "" {
					t.Fatalf("remembered of %s, answered by %s (-want +got):\n%s", client, id, diff)
				}
				if seen[id] {
					continue
				}
				seen[id] = true
				for range 10 {
					if again := n.answererOf(t, client, proto, f, anyServer); again != id {
						t.Fatalf("%s asks %s, then %s", client, id, again)
					}
				}
			}
		}
	})
}

// The map does not learn an endpoint that is not in affinity-endpoints. It learns an endpoint
// that is its own client before the packets are masqueraded.
func TestLearnedEndpoints(t *testing.T) {
	n := newAffinityNet(t, 100)
	everyAffinity(t, n, func(t *testing.T, f nft.Family, proto string) {
		n.forgetClients(t, f)
		want := map[nft.Value]nft.Value{}
		for service, server := range map[int]string{onlyFar: "far", onlyNode: "node", onlyWeb: "web-1", notLearned: "web-2"} {
			if id := n.answererOf(t, "client-1", proto, f, service); id != server {
				t.Errorf("service %d is answered by %s", service, id)
			}
			if service != notLearned {
				want[n.clientKey("client-1", proto, f, service)] = n.endpointValue(f, server)
			}
		}
		a := n.askService(t, "web-1", proto, f, onlyWeb, enough)
		if a.Outcome != testnet.Answered || a.Peer.Addr() == a.Local.Addr() {
			t.Errorf("an endpoint that asks itself: %+v, want an answer to somebody else", a)
		}
		want[n.clientKey("web-1", proto, f, onlyWeb)] = n.endpointValue(f, "web-1")
		if diff := cmp.Diff(want, learnt(t, n.c, f, n.affinityMap(f))); diff != "" {
			t.Errorf("remembered (-want +got):\n%s", diff)
		}
	})
}

// A new connection restarts the time-out and keeps the endpoint. Packets of an open
// connection do not restart the time-out.
func TestAffinityTimeout(t *testing.T) {
	n := newAffinityNet(t, 100)
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) {
			id := n.answererOf(t, "client-1", testnet.TCP, f, anyServer)
			conn, err := n.clients["client-1"].ns.Dial(context.Background(), "tcp", netip.AddrPortFrom(addr(f, anyServer),
				servicePort).String())
			must(t, err)
			defer func() { must(t, conn.Close()) }()

			n.forgetClients(t, f)
			// The entry is as if the client had come two hours ago.
			entry := kernel.Entry{
				Key:     n.clientKey("client-1", testnet.TCP, f, anyServer),
				Timeout: affinityTimeout, Expires: affinityTimeout - 2*time.Hour,
			}
			other := "far"
			if id == other {
				other = "node"
			}
			entry.Data = n.endpointValue(f, other)
			must(t, n.c.Remember(table(f), n.affinityMap(f), []kernel.Entry{entry}))
			check := func(what string, fresh bool) {
				t.Helper()
				got, err := n.c.Learned(table(f), n.affinityMap(f))
				must(t, err)
				if len(got) != 1 || got[0].Key != entry.Key || got[0].Data != entry.Data || got[0].Timeout != affinityTimeout ||
					got[0].Expires > entry.Expires != fresh {
					t.Errorf("after %s: remembered %+v", what, got)
				}
			}
			_, err = conn.Write([]byte("more\n"))
			must(t, err)
			buf := make([]byte, 100)
			_, err = conn.Read(buf) // the server's line or an echo: the packet has come through
			must(t, err)
			check("packets of an open connection", false)
			if again := n.answererOf(t, "client-1", testnet.TCP, f, anyServer); again != other {
				t.Errorf("a new connection goes to %s, not to %s", again, other)
			}
			check("a new connection", true)
		})
	}
}

// A full map takes no more clients, keeps those that it has, and breaks no
// connection.
func TestAffinityOfMoreClientsThanFit(t *testing.T) {
	const size = 2
	n := newAffinityNet(t, size)
	everyAffinity(t, n, func(t *testing.T, f nft.Family, proto string) {
		n.forgetClients(t, f)
		var full map[nft.Value]nft.Value
		for i, client := range slices.Sorted(maps.Keys(n.clients)) {
			for range 5 {
				n.answererOf(t, client, proto, f, anyServer)
			}
			got := learnt(t, n.c, f, n.affinityMap(f))
			if want := min(i+1, size); len(got) != want {
				t.Errorf("%d clients are remembered after the %d., want %d", len(got), i+1, want)
			}
			if full == nil && len(got) == size {
				full = got
			}
		}
		if diff := cmp.Diff(full, learnt(t, n.c, f, n.affinityMap(f))); diff != "" {
			t.Errorf("remembered at first and at last (-first +last):\n%s", diff)
		}
	})
}

// A sweep deletes the entries of an endpoint that has gone, and its clients get another
// one at their next connection.
func TestAffinityToAnEndpointThatHasGone(t *testing.T) {
	n := newAffinityNet(t, 100)
	everyAffinity(t, n, func(t *testing.T, f nft.Family, proto string) {
		n.forgetClients(t, f)
		gone := n.answererOf(t, "client-1", proto, f, anyServer)
		left := slices.DeleteFunc(serviceEndpoints()[anyServer], func(name string) bool { return name == gone })
		p := n.withEndpoints(f, anyServer, proto, left...)
		_, before := nft.State{}.Plan(n.p, timeZero)
		b, after := before.Plan(p, timeZero)
		must(t, n.c.Apply(b))
		stale := n.endpointValue(f, gone)
		_, swept, err := n.c.Sweep(t.Context(), table(f), n.affinityMap(f), func(_, data nft.Value) bool {
			return data != stale
		})
		if err != nil || swept != 1 {
			t.Errorf("swept %d, error %v", swept, err)
		}
		id := n.answererOf(t, "client-1", proto, f, anyServer)
		if id == gone {
			t.Errorf("%s, which is no endpoint any more, answers", gone)
		}
		for range 10 {
			if again := n.answererOf(t, "client-1", proto, f, anyServer); again != id {
				t.Errorf("the client goes to %s, then to %s", id, again)
			}
		}
		b, _ = after.Plan(n.p, timeZero)
		must(t, n.c.Apply(b))
	})
}
