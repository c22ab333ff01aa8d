package kernel_test

import (
	"strings"
	"testing"
	"time"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// LearnedBy finds the entry of one key among many, with the time that it has left.
func TestLearnedBy(t *testing.T) {
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) {
			_, c := open(t)
			p := everything()
			must(t, c.Apply(load(p)))
			set := p.Table(f).Set("affinity")
			entries := rememberedBy(f, 0, 300)
			entries[7].Expires = 20 * time.Minute
			must(t, c.Remember(table(f), set, entries))
			for _, want := range []kernel.Entry{entries[0], entries[7], entries[299]} {
				most := want.Timeout
				if want.Expires > 0 {
					most = want.Expires
				}
				got, ok, err := c.LearnedBy(table(f), set, want.Key)
				must(t, err)
				if !ok || got.Key != want.Key || got.Data != want.Data || got.Timeout != want.Timeout || got.Expires > most ||
					got.Expires < most/2 {
					t.Errorf("of %s: %+v (found: %v), want %+v", set.Key.Format(f, want.Key), got, ok, want)
				}
			}
			absent := *set
			absent.Name = "no-such-map"
			for what, ask := range map[string]func() (kernel.Entry, bool, error){
				"a client that is not there": func() (kernel.Entry, bool, error) {
					return c.LearnedBy(table(f), set, remembered(f, 300).Key)
				},
				"a map that is not there": func() (kernel.Entry, bool, error) {
					return c.LearnedBy(table(f), &absent, entries[0].Key)
				},
				"a table that is not there": func() (kernel.Entry, bool, error) {
					return c.LearnedBy(nft.TableID{Family: f, Name: "absent"}, set, entries[0].Key)
				},
			} {
				if got, ok, err := ask(); ok || err != nil {
					t.Errorf("%s: %+v, %v, %v", what, got, ok, err)
				}
			}
			if _, _, err := c.LearnedBy(table(f), set, entries[0].Key[1:]); err == nil || !strings.Contains(err.Error(),
				"look up in map "+f.String()+" nftproxy affinity: key of") {
				t.Errorf("a key of another length: %v", err)
			}
		})
	}
}
