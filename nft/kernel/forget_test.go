package kernel_test

import (
	"testing"

	"nftproxy/nft"
)

// TestForget: the map is empty at once, whatever it held, and no other map is. A map that
// is empty already, or that there is not, is no error.
func TestForget(t *testing.T) {
	for _, hide := range []bool{false, true} {
		_, c := open(t)
		if hide {
			c.HideOwnership()
		}
		p := everything()
		must(t, c.Apply(load(p)))
		set := p.IPv4.Set("affinity")
		must(t, c.Forget(table(nft.IPv4), set)) // nothing is in it
		must(t, c.Remember(table(nft.IPv4), set, rememberedBy(nft.IPv4, 0, 1000)))
		must(t, c.Remember(table(nft.IPv6), p.IPv6.Set("affinity"), rememberedBy(nft.IPv6, 0, 10)))
		must(t, c.Forget(table(nft.IPv4), set))
		for f, want := range map[nft.Family]int{nft.IPv4: 0, nft.IPv6: 10} {
			entries, err := c.Learned(table(f), p.Table(f).Set("affinity"))
			must(t, err)
			if len(entries) != want {
				t.Errorf("ownership hidden %t: %s has %d entries, want %d", hide, f, len(entries), want)
			}
		}
		must(t, c.DeleteTables(tableName))
		must(t, c.Forget(table(nft.IPv4), set))
	}
}
