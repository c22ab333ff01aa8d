package conntrack

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
)

// A first packet is on its way between the hooks while the rules change how they remember what is to be
// masqueraded: by the mark of an earlier version or of --iptables-masquerade-bit, or by a label. It is
// masqueraded all the same, and what the new rules do not need goes after IdleLife.
func TestHeldPacketIsMasqueraded(t *testing.T) {
	const label, earlier, other = 0, 0x4000, 0x8
	for _, change := range [][2]uint32{{earlier, label}, {label, earlier}, {earlier, other}} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%#x to %#x, restarted %t", change[0], change[1], restarted), func(t *testing.T) {
				w := worlds(t)["IPv4"]
				table, made, queue := open(t, w.Node), listen(t, w.Node), hold(t, w.Node)
				program := func(mark uint32) *nft.Program {
					return ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable, Settings: service.Settings{
						ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, MasqueradeMark: mark,
					}}, w.snapshot(t))
				}
				r, want, now := newRules(t, w.Node), program(change[1]), time.Time{}
				plan := func(p *nft.Program) {
					t.Helper()
					batch, next := r.state.Plan(p, now)
					if err := r.conn.Apply(batch); err != nil {
						t.Fatal(err)
					}
					r.state = next
				}
				read := func() *nft.Model {
					t.Helper()
					m, err := r.conn.Read(want)
					if err != nil {
						t.Fatal(err)
					}
					return m
				}
				// An answer would be held too.
				silent, err := w.Outside.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(w.outside, 53).String())
				if err != nil {
					t.Fatal(err)
				}
				defer silent.Close()

				plan(program(change[0]))
				sent := w.send(t, service.UDP, 41001, w.dnatedIP, 53)
				id := queue.next(t)
				if restarted {
					r.state = nft.Adopt(read(), want)
				}
				plan(want)
				queue.release(t, id)
				made.await(t, sent)
				for _, f := range flows(t, table, Filter{}) {
					if f.Original == sent.original && f.Reply.Dst.Addr() == w.podAddr {
						t.Errorf("not masqueraded: %+v", f)
					}
				}
				if due := r.state.Due(); due.After(now.Add(nft.IdleLife)) || due.IsZero() {
					t.Errorf("the old rule goes at %v", due)
				}
				now = now.Add(nft.IdleLife)
				plan(want)
				if diff := check.Diff(want, read()); diff != "" {
					t.Errorf("wanted and read (-want +got):\n%s", diff)
				}
			})
		}
	}
}
