package takeover

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/look/othertables"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// otherWorld has tables of other nftproxies, and a follower of them.
type otherWorld struct {
	*OtherTables
	found   []othertables.Tables
	err     error
	at      time.Time
	removed []string
	notes   []string
	log     strings.Builder
}

func newOtherWorld() *otherWorld {
	w := &otherWorld{at: time.Unix(0, 0)}
	w.OtherTables = NewOtherTables("nftproxy", slog.New(slog.NewTextHandler(&w.log, nil)), func(note string) {
		w.notes = append(w.notes, note)
	})
	w.find = func() ([]othertables.Tables, error) { return slices.Clone(w.found), w.err }
	w.now = func() time.Time { return w.at }
	w.remove = func(t kernel.TableInfo) error {
		w.removed = append(w.removed, t.ID.String())
		return w.err
	}
	return w
}

func otherTable(keeper string, shared, alone int) othertables.Tables {
	t := othertables.Tables{Name: "other", Alone: alone}
	for _, f := range nft.Families() {
		t.Infos = append(t.Infos, kernel.TableInfo{ID: nft.TableID{Family: f, Name: "other"}})
	}
	if keeper != "" {
		t.Keepers = []string{keeper}
	}
	for range shared {
		t.Shared = append(t.Shared, othertables.Shared{Claim: service.Claim{Addr: netip.MustParseAddr("10.96.0.10"),
			Protocol: service.TCP, Port: 80}})
	}
	return t
}

func (w *otherWorld) want(t *testing.T, what, note string, notes int, removed ...string) {
	t.Helper()
	if got := w.Note(); !strings.Contains(got, note) || (got == "") != (note == "") {
		t.Errorf("%s: note %q, want %q", what, got, note)
	}
	if len(w.notes) != notes || !slices.Equal(w.removed, removed) {
		t.Errorf("%s: %d events, want %d; removed %q, want %q", what, len(w.notes), notes, w.removed, removed)
	}
}

// TestOtherTables: a table that nobody keeps goes once ours is in force and has all that it has, or after the time in
// which its process would be back. Of one that is kept people are told if it has something of ours, once.
func TestOtherTables(t *testing.T) {
	w := newOtherWorld()
	w.found = []othertables.Tables{otherTable("PID 7", 0, 3)}
	w.look()
	w.want(t, "another proxy with other Services", "", 0)
	w.found = []othertables.Tables{otherTable("PID 7", 1, 3)}
	w.look()
	w.found = []othertables.Tables{otherTable("PID 7", 2, 3)}
	w.look()
	w.want(t, "one with our Services", "both serve 2 addresses", 1)
	w.found = []othertables.Tables{otherTable("", 2, 3)}
	w.look()
	w.want(t, "it has ended", "nothing keeps it up to date", 2)
	w.inForce[nft.IPv4], w.inForce[nft.IPv6] = true, true
	w.at = w.at.Add(kubeProxyRest - time.Second)
	w.look()
	w.want(t, "it might come back", "nothing keeps it up to date", 2)
	w.found = []othertables.Tables{otherTable("PID 8", 2, 3)}
	w.look()
	w.found = []othertables.Tables{otherTable("", 2, 3)}
	w.at = w.at.Add(time.Second)
	w.look()
	w.want(t, "it has come back, and ended again", "nothing keeps it up to date", 4)
	w.at = w.at.Add(kubeProxyRest)
	w.look()
	w.want(t, "it does not come back", "", 4, "ip other", "ip6 other")

	w.removed, w.found = nil, []othertables.Tables{otherTable("", 2, 0)}
	w.look()
	w.want(t, "one of which we have all", "", 4, "ip other", "ip6 other")
	w.removed, w.inForce[nft.IPv6] = nil, false
	w.look()
	w.want(t, "ours is in force in one family", "both serve 2", 5, "ip other")
	w.removed, w.err = nil, errors.New("busy")
	w.look()
	w.look()
	if n := strings.Count(w.log.String(), "err=busy"); n != 1 {
		t.Errorf("the failure is logged %d times:\n%s", n, w.log.String())
	}
	w.want(t, "it cannot be told", "both serve 2", 5)
}

// TestOtherTablesAtStart: the first sync in force looks at once.
func TestOtherTablesAtStart(t *testing.T) {
	w := newOtherWorld()
	w.found = []othertables.Tables{otherTable("", 1, 0)}
	w.Observe(proxy.Sync{Err: errors.New("refused")})
	w.want(t, "a sync that failed", "", 0)
	w.Observe(proxy.Sync{})
	w.want(t, "a sync", "", 0, "ip other", "ip6 other")
}
