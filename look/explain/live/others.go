package live

import (
	"cmp"
	"context"
	"slices"

	"nftproxy/look/explain"
	"nftproxy/look/othertables"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// askedTable is a table of ours, or of another nftproxy.
type askedTable struct {
	info kernel.TableInfo
	// contents has nothing for the table that the reader asks about: that one is in facts. kept and remedy are those of
	// othertables.Tables.
	contents     *nft.Model
	kept, remedy string
}

// readOthers reads the tables of other nftproxies. It returns them and ours in the order in which the kernel asks them,
// and nothing if there are no others.
func (n *Node) readOthers(ours []kernel.TableInfo) ([]askedTable, error) {
	others, err := othertables.Find(n.conn, n.facts.Table)
	if err != nil || len(others) == 0 || len(ours) == 0 { // Without our table there is another name to ask for.
		return nil, err
	}
	var asked []askedTable
	for _, info := range ours {
		asked = append(asked, askedTable{info: info})
	}
	for _, t := range others {
		contents, err := n.conn.Read(ruleset.Compile(ruleset.Config{Table: t.Name}, service.Snapshot{Node: &service.Node{}}))
		if err != nil {
			return nil, err
		}
		for _, info := range t.Infos {
			asked = append(asked, askedTable{info, contents, t.Kept(), t.Remedy()})
		}
	}
	slices.SortStableFunc(asked, func(a, b askedTable) int {
		return cmp.Compare(b.info.Handle, a.info.Handle)
	})
	return asked, nil
}

// answering returns the node with the facts about the first table that has rules for the packet. That is ours if none
// has.
func (n *Node) answering(ctx context.Context, q explain.Question) (*Node, error) {
	found := *n
	taken := q.NoWay != "" // connect() fails: no table is asked
	for i := range n.asked {
		t := &n.asked[i]
		if t.info.ID.Family != ip.Of(q.Packet.Dst.Addr()) {
			continue
		}
		facts, other := n.facts, t.contents != nil
		if other {
			facts.Tables, facts.Table, facts.NoOwner = t.contents, t.info.ID.Name, t.info.Orphan()
		}
		c, err := explain.Brief(ctx, q, &facts)
		if err != nil {
			return nil, err
		}
		has := c.Outcome != explain.Untouched
		if other {
			note := explain.OtherTable{ID: t.info.ID, Kept: t.kept, Remedy: t.remedy, Has: has}
			if has && !taken {
				note.Instead = n.facts.Table
				found.facts.Tables, found.facts.Table, found.facts.NoOwner = facts.Tables, facts.Table, facts.NoOwner
			}
			found.facts.OtherTables = append(found.facts.OtherTables, note)
		}
		taken = taken || has
	}
	return &found, nil
}
