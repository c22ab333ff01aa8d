package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/internal/proxy"
	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// told is what a cleaner was told.
type told []string

func (l *told) Inherit(func() service.Snapshot) { *l = append(*l, "inherit") }

func (l *told) Notify(_ service.Snapshot, unknown bool) {
	*l = append(*l, fmt.Sprintf("notify %t", unknown))
}

func (l *told) Unchanged() { *l = append(*l, "unchanged") }

// TestCleanAfter: a sync that may be in force or not tells the cleaner nothing,
// which holds it back until the retry.
func TestCleanAfter(t *testing.T) {
	refused, lost := errors.New("refused"), fmt.Errorf("apply batch: %w", kernel.ErrOutcomeUnknown)
	for name, c := range map[string]struct {
		sync proxy.Sync
		want told
	}{
		"in force":             {proxy.Sync{}, told{"notify false"}},
		"the first":            {proxy.Sync{Found: &nft.Model{}, Adopted: true}, told{"inherit", "notify true"}},
		"one family":           {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv4: refused}}, told{"notify false"}},
		"one, the other lost":  {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv6: lost}}, told{"notify false"}},
		"neither family":       {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv4: refused, nft.IPv6: refused}}, told{"unchanged"}},
		"neither, one is lost": {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv4: refused, nft.IPv6: lost}}, nil},
		"both are lost":        {proxy.Sync{Err: proxy.FamilyErrors{nft.IPv4: lost, nft.IPv6: lost}}, nil},
		"lost together":        {proxy.Sync{Err: lost}, nil},
	} {
		var got told
		(&daemon{}).cleanAfter(&got)(c.sync)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: the cleaner was told (-want +got):\n%s", name, diff)
		}
	}
}
