// Package othertables finds tables of nftproxy with another name than this proxy's: those of a second nftproxy, which
// runs or has ended. The kernel asks them for the same packets. Two proxies may serve one node if they have different
// Services (--nftproxy-service-proxy-name): what matters is whether both tables have an address and port, and whether a
// process keeps the other table up to date.
//
// It changes nothing, and works in the network namespace of the calling thread. It needs CAP_NET_ADMIN.
package othertables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/tablekeeper"
)

// Tables are those of one other nftproxy: of one name, in one or both families.
type Tables struct {
	Name string
	// Infos are sorted by family.
	Infos []kernel.TableInfo
	// Keepers describes the processes that keep the tables. There are none if the processes have ended.
	Keepers []string
	// Shared has the claims that our tables have too, sorted, with the names of their Services in the other table.
	Shared []Shared
	// Alone is the number of claims that our tables do not have.
	Alone int
}

// Shared is a claim that two tables have.
type Shared struct {
	Claim   service.Claim
	Service service.Name
	// First says that the kernel asks the other table before ours.
	First bool
}

// Abandoned says that no process keeps the tables: their Services are as they were when it ended.
func (t *Tables) Abandoned() bool { return len(t.Keepers) == 0 }

// Find returns the tables of other nftproxies beside the one with that name, sorted by name.
func Find(conn *kernel.Conn, table string) ([]Tables, error) {
	infos, err := conn.OurTables()
	if err != nil {
		return nil, err
	}
	keepers, err := tablekeeper.List()
	if err != nil {
		return nil, err
	}
	byName, own := map[string]*Tables{}, map[nft.Family]kernel.TableInfo{}
	for _, info := range infos {
		name := info.ID.Name
		if name == table {
			own[info.ID.Family] = info
			continue
		}
		if byName[name] == nil {
			byName[name] = &Tables{Name: name, Keepers: keepers.Texts(name, "")}
		}
		t := byName[name]
		t.Infos = append(t.Infos, info)
		if t.Abandoned() && info.Owner != 0 {
			t.Keepers = []string{tablekeeper.OwnerText(info.Owner)}
		}
	}
	found := make([]Tables, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		t := byName[name]
		for _, info := range t.Infos {
			if err := t.compare(conn, info, own[info.ID.Family]); err != nil {
				return nil, err
			}
		}
		found = append(found, *t)
	}
	return found, nil
}

// compare compares the claims of a table with those of ours in its family. The zero ours has none.
func (t *Tables) compare(conn *kernel.Conn, other, ours kernel.TableInfo) error {
	theirs, err := claims(conn, other.ID)
	if err != nil {
		return err
	}
	have := map[service.Claim]service.Name{}
	if ours.ID.Name != "" && len(theirs) > 0 {
		if have, err = claims(conn, ours.ID); err != nil {
			return err
		}
	}
	for c, name := range theirs {
		if _, both := have[c]; !both {
			t.Alone++
			continue
		}
		// Of chains with one priority, the kernel calls the one first that was registered later (nf_hook_entries_grow,
		// Linux 4.14 to 6.18). Base chains are made with their table, and tables are numbered.
		t.Shared = append(t.Shared, Shared{c, name, other.Handle > ours.Handle})
	}
	slices.SortFunc(t.Shared, func(a, b Shared) int {
		return cmp.Or(a.Claim.Addr.Compare(b.Claim.Addr), cmp.Compare(a.Claim.Protocol, b.Claim.Protocol),
			cmp.Compare(a.Claim.Port, b.Claim.Port))
	})
	return nil
}

func claims(conn *kernel.Conn, id nft.TableID) (map[service.Claim]service.Name, error) {
	want := ruleset.Compile(ruleset.Config{Table: id.Name}, service.Snapshot{Node: &service.Node{}}).Table(id.Family)
	return ruleset.ReadClaims(id.Family, func(set string) (*nft.SetContents, error) { return conn.ReadSet(want, set) })
}

// Kept says in words whether a process keeps the tables.
func (t *Tables) Kept() string {
	if t.Abandoned() {
		return "an nftproxy that has ended: nothing keeps it up to date"
	}
	return "another nftproxy, " + strings.Join(t.Keepers, "; ")
}

// Problem says what is wrong with the tables beside those of that name; empty if nothing is.
func (t *Tables) Problem(ours string) string {
	if !t.Abandoned() && len(t.Shared) == 0 {
		return ""
	}
	text := fmt.Sprintf("table %s is of %s", t.Name, t.Kept())
	if len(t.Shared) == 0 {
		return fmt.Sprintf("%s; it serves %s that table %s does not", text, count(t.Alone), ours)
	}
	first := "table " + ours
	if slices.ContainsFunc(t.Shared, func(s Shared) bool { return s.First }) {
		first = "table " + t.Name
	}
	return fmt.Sprintf("%s; tables %s and %s both serve %s, and the kernel asks %s first: %s", text, t.Name, ours,
		count(len(t.Shared)), first, t.examples())
}

// Remedy says what to do about a problem.
func (t *Tables) Remedy() string {
	if t.Abandoned() {
		return "nftproxy cleanup removes it; nftproxy run removes it once its own rules serve all that it has, or a few " +
			"minutes later"
	}
	return "stop one of the two, or give them different Services (--nftproxy-service-proxy-name)"
}

// examples lists some of the shared claims.
func (t *Tables) examples() string {
	const most = 3
	var list []string
	for _, s := range t.Shared[:min(most, len(t.Shared))] {
		list = append(list, fmt.Sprintf("%s (%s)", s.Claim, s.Service))
	}
	if len(t.Shared) > most {
		list = append(list, "...")
	}
	return strings.Join(list, ", ")
}

func count(n int) string {
	if n == 1 {
		return "1 address and port"
	}
	return fmt.Sprintf("%d addresses and ports", n)
}
