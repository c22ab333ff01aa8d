package kernel_test

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// The table of TestWhatCommitsWalk.
const (
	verdictMap = "verdicts"
	dataMap    = "data"
	plainSet   = "plain"
	baseChain  = "prerouting"
	behindMap  = "behind"
)

// walkTable is a table with so many verdicts, which a base chain asks, and as many elements in a
// map of data.
func walkTable(elements int) nft.Batch {
	id := table(nft.IPv4)
	verdicts := &nft.Set{Name: verdictMap, Key: nft.Fields{nft.Daddr}, Verdicts: true, Size: uint32(2 * elements)}
	data := &nft.Set{Name: dataMap, Key: nft.Fields{nft.Daddr}, Data: nft.Fields{nft.Daddr, nft.Dport},
		Size: uint32(2 * elements)}
	base := &nft.Chain{
		Name: baseChain, Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100},
		Rules: []nft.Rule{{nft.VMap{Key: verdicts.Key, Map: verdictMap}}},
	}
	leadsTo := &nft.Chain{Name: behindMap, Rules: []nft.Rule{{nft.Verdict{Code: nft.Drop}}}}
	var toChain, toEndpoints []nft.OwnedElement
	for i := range elements {
		key := addrValue(nft.IPv4, 1+i)
		toChain = append(toChain, owned("default/web", nft.Element{Set: verdictMap, Key: key, Verdict: goTo(behindMap)}))
		toEndpoints = append(toEndpoints, owned("default/web", nft.Element{Set: dataMap, Key: key,
			Data: nft.Value(nft.AppendPort([]byte(key), 80))}))
	}
	return nft.Batch{Ops: []nft.Op{
		nft.AddTable{Table: id},
		nft.AddSet{Table: id, Set: verdicts}, nft.AddSet{Table: id, Set: data},
		nft.AddSet{Table: id, Set: &nft.Set{Name: plainSet, Key: nft.Fields{nft.Daddr}, Size: 48}},
		nft.AddChain{Table: id, Chain: base}, nft.AddChain{Table: id, Chain: leadsTo},
		nft.AddRules{Table: id, Chain: base}, nft.AddRules{Table: id, Chain: leadsTo},
		nft.AddElements{Table: id, Set: verdicts, Elements: toChain},
		nft.AddElements{Table: id, Set: data, Elements: toEndpoints},
	}}
}

// change is something that a batch adds, and another one takes away.
type change struct{ add, remove nft.Batch }

// elementChange is a change of one element, which is in no table of walkTable.
func elementChange(set string, v nft.Verdict) change {
	s := &nft.Set{Name: set, Key: nft.Fields{nft.Daddr}, Verdicts: v != nft.Verdict{}}
	e := []nft.OwnedElement{owned("default/web", nft.Element{Set: set, Key: addrValue(nft.IPv4, 1<<20), Verdict: v})}
	return change{
		nft.Batch{Ops: []nft.Op{nft.AddElements{Table: table(nft.IPv4), Set: s, Elements: e}}},
		nft.Batch{Ops: []nft.Op{nft.DeleteElements{Table: table(nft.IPv4), Set: s, Elements: e}}},
	}
}

// chainChange is a change of a chain that looks into the map of data. Nothing leads to the chain.
func chainChange() change {
	id := table(nft.IPv4)
	c := &nft.Chain{Name: "more", Rules: []nft.Rule{{
		nft.MatchProto{Protocol: unix.IPPROTO_TCP}, nft.DNAT{Key: nft.Fields{nft.Daddr}, Map: dataMap},
	}}}
	return change{
		nft.Batch{Ops: []nft.Op{nft.AddChain{Table: id, Chain: c}, nft.AddRules{Table: id, Chain: c}}},
		nft.Batch{Ops: []nft.Op{nft.FlushChain{Table: id, Chain: c.Name}, nft.DeleteChain{Table: id, Chain: c.Name}}},
	}
}

// TestWhatCommitsWalk tells which commits cost what the table holds, and which do not. The
// kernel walks through all verdicts that a base chain leads to where a verdict is added that leads
// to a chain (nft_table_validate). It walks through a map where another chain gets a
// rule that looks into it (nf_tables_bind_set). On a kernel that no longer does one of these the test
// skips itself and says so, also on the page of make test-kernels. docs/internals/data-path.md (A scaled Service)
// names what can become simpler then.
//
// On Linux 6.18 the first takes 120 to 170 times as long beside 50,000 elements as beside 100, the second
// 250 to 290 times, and all others 0.8 to 4 times, since a walk leaves cold caches behind.
func TestWhatCommitsWalk(t *testing.T) {
	const few, many = 100, 50_000
	const limit = 12 // between what does not grow, and what grows with the table beside a fixed cost
	changes := []struct {
		name        string
		change      change
		walksToAdd  bool
		add, remove [2]time.Duration
	}{
		{name: "a verdict that leads to a chain", change: elementChange(verdictMap, goTo(behindMap)), walksToAdd: true},
		{name: "a verdict that leads to no chain", change: elementChange(verdictMap, nft.Verdict{Code: nft.Return})},
		{name: "an element of a set without verdicts", change: elementChange(plainSet, nft.Verdict{})},
		{name: "a chain that looks into a map", change: chainChange(), walksToAdd: true},
	}
	for size, elements := range []int{few, many} {
		c := openUnwatched(t)
		must(t, c.Apply(walkTable(elements)))
		for i := range changes {
			at := &changes[i]
			at.add[size], at.remove[size] = least(t, c, at.change)
		}
	}
	var better []string
	for _, at := range changes {
		added, removed := growth(at.add), growth(at.remove)
		t.Logf("%s: %v to add beside %d elements, %v beside %d (%.1f times); %.1f times to remove", at.name, at.add[0], few,
			at.add[1], many, added, removed)
		switch {
		case at.walksToAdd && added < limit:
			better = append(better, at.name)
		case !at.walksToAdd && added > limit:
			t.Errorf("%s: adding it costs what the table holds", at.name)
		}
		if removed > limit {
			t.Errorf("%s: removing it costs what the table holds", at.name)
		}
	}
	if len(better) > 0 && !t.Failed() {
		t.Skipf("this kernel no longer walks through the table to add %s", strings.Join(better, " and "))
	}
}

func growth(of [2]time.Duration) float64 { return float64(of[1]) / float64(of[0]) }

// least makes a change and takes it back several times. It returns the least time that each took.
func least(t *testing.T, c *kernel.Conn, ch change) (add, remove time.Duration) {
	t.Helper()
	spent := func(b nft.Batch) time.Duration {
		start := time.Now()
		must(t, c.Apply(b))
		return time.Since(start)
	}
	add, remove = time.Hour, time.Hour
	for range 30 {
		add = min(add, spent(ch.add))
		remove = min(remove, spent(ch.remove))
	}
	return add, remove
}
