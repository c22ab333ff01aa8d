package inspect_test

import (
	"encoding/json"
	"testing"
	"time"

	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/gen"
)

// FuzzRows: whatever tables others have left, there are rows of them for every selection,
// in bounded memory, and as JSON.
func FuzzRows(f *testing.F) {
	for _, data := range gen.Seeds(20, 400) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rng := gen.Rand(data)
		cfg, node, services, b := gen.Cluster(rng)
		empty := ruleset.Compile(ruleset.Config{Table: cfg.Table}, service.Snapshot{Node: &service.Node{}})
		m := gen.DamagedTables(rng, ruleset.Compile(cfg, b.Snapshot()), empty)
		check.Bounded(t, 128<<20, func() {
			tables := inspect.NewTables(m, cfg.Table, node)
			selections := []inspect.Selection{{}}
			for range 3 {
				p := gen.Packet(rng, node, services)
				s := inspect.Selection{Address: p.Dst.Addr(), Port: p.Dst.Port()}
				if rng.IntN(2) == 0 {
					s.Port = 0
				}
				if names := tables.Names(); len(names) > 0 && rng.IntN(2) == 0 {
					s = inspect.Selection{Services: names[:1+rng.IntN(len(names))]}
				}
				selections = append(selections, s)
			}
			for _, s := range selections {
				rows := []any{tables.ServiceRows(s), tables.EndpointRows(s, nil), tables.ChainRows(s)}
				if err := tables.Unknown(s); err != nil {
					t.Errorf("%+v: %v", s, err)
				}
				for _, c := range tables.ClientMaps(s) {
					key := nft.Value(data[:min(len(data), c.Set.Key.Len(c.Table.Family))])
					rows = append(rows, c.Rows(s, []kernel.Entry{{Key: key, Data: key + key, Timeout: time.Hour}}))
				}
				if _, err := json.Marshal(rows); err != nil {
					t.Errorf("%+v: %v", s, err)
				}
			}
		})
	})
}
