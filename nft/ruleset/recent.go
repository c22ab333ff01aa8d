package ruleset

import (
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// RecentFor is how long the tables remember that an address and port had a new connection. A client
// of TCP repeats its first packet for about two minutes (Linux: net.ipv4.tcp_syn_retries), and the
// kernel keeps the entry of an unanswered one for as long after the last
// (nf_conntrack_tcp_timeout_syn_sent). A client with a fixed port, such as NFS in the kernel, tries
// without a limit by one entry, which is recorded only once. An endpoint on a failed node is
// removed after some six minutes (the controllers' defaults: 50 s, and 5 min until the pods are
// evicted).
const RecentFor = 20 * time.Minute

// MostRecent is the largest number of frontends of a family with which the sets record every new
// connection. The rest of their size is for frontends that are removed within RecentFor.
const MostRecent = 60_000

// recentSet declares the set of keys that had a new connection lately. It has room for
// nft.DynamicLimit keys. Only keys of Services come in, since the rule stands behind the
// lookup of Services.
func (a *access) recentSet() *nft.Set { return &nft.Set{Name: a.recent, Key: a.key, Dynamic: true} }

// recentRule notes that the packet's key has a new connection. It comes before the
// translation: who sees no key in the set may be sure that no connection has been
// translated since RecentFor. It is a rule of its own, since a full set ends its rule.
func (a *access) recentRule() nft.Rule {
	return NoteRecent.rule(nft.Update{Map: a.recent, Key: a.key, Timeout: RecentFor})
}

// Recent returns the set of a claim's family that has its key while it had a new connection
// lately. A claim of a node port has no address (service.NodePortClaim).
func Recent(table string, c service.Claim) (nft.TableID, *nft.Set, nft.Value) {
	id := nft.TableID{Family: ip.Of(c.Addr), Name: table}
	access := byAddress()
	switch {
	case c.Addr.IsUnspecified():
		access = byNodePort()
	case c.IsRange():
		access = byRange()
	}
	return id, access.recentSet(), claimValue(c)
}
