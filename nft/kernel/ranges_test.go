package kernel_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/check/strict"
	"nftproxy/test/lib/testnet"
)

// Only sources within a service's ranges reach it, and the interpreter says the same.
func TestSourceRanges(t *testing.T) {
	n := newAffinityNet(t, 100)
	model := n.p.Model()
	everyAffinity(t, n, func(t *testing.T, f nft.Family, proto string) {
		for client, through := range map[string][2]bool{
			"client-1": {true, false}, "client-2": {true, true}, "outside": {true, false}, "node": {false, false},
		} {
			for i, service := range []int{restricted, restrictedToOne} {
				timeout := enough
				if !through[i] {
					timeout = little
				}
				a := n.askService(t, client, proto, f, service, timeout)
				if got := a.Outcome == testnet.Answered; got != through[i] {
					t.Errorf("%s asks service %d: %s", client, service, a.Outcome)
				}
				packet := nft.Packet{
					Src: netip.AddrPortFrom(of(f, n.clientNamed(client).addrs), 50000), Dst: netip.AddrPortFrom(addr(f, service),
						servicePort),
					Protocol: protocols()[proto], FromNode: client == "node",
				}
				r := model.Trace(packet, nft.Host{
					Local:  func(a netip.Addr) bool { return slices.Contains(n.NodeAddrs, a) },
					Random: func(uint32) uint32 { return 0 },
				})
				if got := r.Fate == nft.DNATed; got != through[i] {
					t.Errorf("%s in the interpreter: %s", packet, r)
				}
			}
		}
	})
}

// The kernel refuses intervals that overlap, so a program must merge them. The kernel only
// looks where the ends of the new interval lie. So it takes one that encloses an old one;
// there the model is stricter.
func TestOverlappingRangesAreRefused(t *testing.T) {
	_, c := open(t)
	p := everything()
	must(t, c.Apply(load(p)))
	model := p.Model()
	for _, f := range nft.Families() {
		for _, s := range []struct {
			name   string
			prefix nft.Value
		}{{"source-ranges", servicePrefix(f, 200, 6, 80)}, {addressRanges, ""}} {
			refusesOverlaps(t, c, p, model, f, p.Table(f).Set(s.name), s.prefix)
		}
	}
}

// refusesOverlaps adds ranges of addresses from 1024 on, after a prefix.
func refusesOverlaps(t *testing.T, c *kernel.Conn, p *nft.Program, model *nft.Model, f nft.Family, set *nft.Set,
	prefix nft.Value) {
	t.Helper()
	const base = 1024
	add := func(from, to int) nft.Batch {
		return nft.Batch{Ops: []nft.Op{nft.AddElements{Table: table(f), Set: set,
			Elements: []nft.OwnedElement{owned("default/web", nft.Element{
				Set: set.Name, Key: prefix + addrValue(f, base+from), KeyEnd: prefix + addrValue(f, base+to),
			})}}}}
	}
	for _, test := range []struct {
		from, to int
		fits     bool
	}{
		{16, 31, true}, {16, 31, true}, {20, 21, false}, {0, 16, false}, {31, 40, false}, {16, 30, false},
		{32, 32, true}, {15, 15, true}, {0, 14, true},
	} {
		b := add(test.from, test.to)
		inKernel, inModel := c.Apply(b), strict.Apply(model, b)
		if inKernel == nil && !test.fits {
			// Linux 5.10 says nothing and leaves the element out.
			got, err := c.Read(p)
			must(t, err)
			if diff := cmp.Diff(model.String(), got.String()); diff != "" {
				t.Errorf("%s %d-%d: taken (-want +got):\n%s", f, test.from, test.to, diff)
			}
			t.Logf("%s %d-%d: left out without an error", f, test.from, test.to)
			continue
		}
		if (inKernel == nil) != test.fits || (inModel == nil) != test.fits {
			t.Errorf("%s %d-%d: kernel says %v, model %v", f, test.from, test.to, inKernel, inModel)
		}
		if !test.fits && (!errors.Is(inKernel, unix.EEXIST) || !errors.Is(inModel, strict.ErrExists)) {
			t.Errorf("%s %d-%d: kernel says %v, model %v", f, test.from, test.to, inKernel, inModel)
		}
	}
	if err := strict.Apply(model, add(0, 63)); !errors.Is(err, strict.ErrExists) {
		t.Errorf("%s: one that encloses others: %v", f, err)
	}
}
