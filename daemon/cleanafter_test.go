package daemon

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// told lists the calls that the cleaner got.
type told []string

func (l *told) ServedBefore(func() service.Snapshot) { *l = append(*l, "served before") }

func (l *told) SyncDone(_ service.Snapshot, unknown bool) {
	*l = append(*l, fmt.Sprintf("done %t", unknown))
}

func (l *told) SyncChangedNothing() { *l = append(*l, "changed nothing") }

// TestCleanAfter: after a sync with unknown outcome the cleaner gets no call, so it
// removes nothing until the retry.
func TestCleanAfter(t *testing.T) {
	refused, lost := errors.New("refused"), fmt.Errorf("apply batch: %w", kernel.ErrOutcomeUnknown)
	for name, c := range map[string]struct {
		sync proxy.Sync
		want told
	}{
		"in force":            {proxy.Sync{}, told{"done false"}},
		"the first":           {proxy.Sync{Found: &nft.Model{}, Adopted: true}, told{"served before", "done true"}},
		"one family":          {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv4: refused}}, told{"done false"}},
		"one, the other lost": {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv6: lost}}, told{"done false"}},
		"neither family": {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv4: refused, nft.IPv6: refused}},
			told{"changed nothing"}},
		"neither, one is lost": {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv4: refused, nft.IPv6: lost}}, nil},
		"both are lost":        {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv4: lost, nft.IPv6: lost}}, nil},
		"lost together":        {proxy.Sync{Err: lost}, nil},
	} {
		var got told
		cleanAfter(&got, "nftproxy")(c.sync)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: the cleaner was told (-want +got):\n%s", name, diff)
		}
	}
}
