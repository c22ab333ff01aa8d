package listen

import (
	"maps"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// index knows the Services of one family that want listeners, with a K for each, and what the wanted addresses are for,
// a W. A snapshot may be in force in one family and not in the other, so each family has an index of its own. The cost
// of an update grows with its difference from the last one. If that concerns any Service of the index, it also grows
// with their number.
type index[K any, W comparable] struct {
	nodePorts service.NodePortAddresses
	family    ip.Family

	// The last update.
	snapshot service.Snapshot
	refused  map[string]error

	services map[service.Name]K
	wanted   map[address]W
}

// follow takes note of a snapshot, and returns whether its changes concern any Service of the index. For each Service
// of the family that has changed, next returns what to know of it after what was known before, and whether it belongs
// to the index.
func (x *index[K, W]) follow(s service.Snapshot, refused map[string]error, next func(before K, now *service.Service) (K,
	bool)) bool {
	concerned := x.snapshot.Node != s.Node || len(refused) > 0 || len(x.refused) > 0
	for c := range treap.Diff(x.snapshot.Services, s.Services) {
		before, had := x.services[c.Key]
		delete(x.services, c.Key)
		if c.HasNew && c.New.InFamily(x.family) {
			if now, has := next(before, c.New); has {
				x.services[c.Key] = now
				concerned = true
			}
		}
		concerned = concerned || had
	}
	for c := range treap.Diff(x.snapshot.Conflicts, s.Conflicts) {
		_, has := x.services[c.Key]
		concerned = concerned || has
	}
	x.snapshot, x.refused = s, refused
	return concerned
}

// want takes note of what is wanted, and returns whether it differs from before.
func (x *index[K, W]) want(wanted map[address]W) bool {
	changed := !maps.Equal(wanted, x.wanted)
	x.wanted = wanted
	return changed
}

func (x *index[K, W]) wants() map[address]W { return x.wanted }
