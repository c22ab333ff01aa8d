package kernel_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
)

// Read recognises the declarations of sets that are not wanted, and reads their elements.
func TestReadRecognisesSets(t *testing.T) {
	_, c := open(t)
	p := everything()
	must(t, c.Apply(load(p)))
	got, err := c.Read(&nft.Program{IPv4: newTable(nft.IPv4, nil, nil, nil), IPv6: newTable(nft.IPv6, nil, nil, nil)})
	must(t, err)
	want := p.Model()
	for _, f := range nft.Families() {
		want.Table(table(f)).Chains, got.Table(table(f)).Chains = nil, nil
	}
	if diff := cmp.Diff(want.String(), got.String()); diff != "" {
		t.Errorf("sets applied and read (-want +got):\n%s", diff)
	}
}
