package nft_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

// TestTransactions: carried out one after the other, the transactions do what the batch
// does. In a table in use, no chain gets its rules in the same transaction as the first
// element that points to it.
func TestTransactions(t *testing.T) {
	split := 0
	withSeeds(t, 40, func(t *testing.T, rng *rand.Rand) {
		h, m, s, now := newHistory(rng), nft.NewModel(), nft.State{}, epoch
		for range 50 {
			want := h.next()
			b, next := s.Plan(want, now)
			size := 0
			for _, transaction := range b.Transactions() {
				checkTransaction(t, m, transaction)
				if err := strict.Apply(m, transaction); err != nil {
					t.Fatalf("the model refuses a transaction: %v\n%s", err, transaction)
				}
				size += transaction.Size()
			}
			if size != b.Size() {
				t.Fatalf("%d objects in the transactions, %d in the batch", size, b.Size())
			}
			split += len(b.Transactions()) - 1
			wantModel(t, want, m)
			s, now = next, now.Add(time.Duration(rng.IntN(5))*time.Second)
		}
	})
	if split < 100 && !testing.Short() {
		t.Errorf("only %d batches in more than one transaction: the histories vary too little", split)
	}
}

// checkTransaction is about a packet that follows the rules from before the transaction
// and finds the elements from after it.
func checkTransaction(t *testing.T, before *nft.Model, b nft.Batch) {
	t.Helper()
	made := map[string]bool{}
	fresh := map[nft.TableID]bool{}
	used := map[string]bool{}
	for _, f := range nft.Families() {
		c := before.Table(nft.TableID{Family: f, Name: "random"})
		if c == nil {
			continue
		}
		for _, e := range c.Sets[verdicts].Elements {
			used[c.Table.String()+e.Verdict.Chain] = true
		}
	}
	for _, op := range b.Ops {
		table := nft.TableOf(op)
		switch op := op.(type) {
		case nft.AddTable:
			fresh[table] = true
		case nft.AddChain:
			made[table.String()+op.Chain.Name] = op.Chain.Hook == nil
		case nft.FlushChain:
			name := table.String() + op.Chain
			made[name] = made[name] || !used[name] && len(before.Table(table).Chains[op.Chain].Rules) == 0
		case nft.AddElements:
			for _, e := range op.Elements {
				if !fresh[table] && made[table.String()+e.Verdict.Chain] {
					t.Fatalf("chain %s had no rules, and there is an element that points to it:\n%s", e.Verdict.Chain, b)
				}
			}
		}
	}
}

// TestTransactionsOfAFirstProgram: no packet gets into a new table before all of it is
// there.
func TestTransactionsOfAFirstProgram(t *testing.T) {
	b, _ := nft.State{}.Plan(newHistory(rand.New(rand.NewPCG(1, 2))).next(), epoch)
	if n := len(b.Transactions()); n != 1 {
		t.Errorf("a first program goes in by %d transactions", n)
	}
}

// TestFoundChainWantedAgain: an idle chain was found with a rule that the reader did not
// recognise. Plan empties it where it replaces a set. When the chain is wanted again, it
// must have its rules before packets get there.
func TestFoundChainWantedAgain(t *testing.T) {
	h := newHistory(nil)
	h.tables[0].rules["shared-1"] = 1
	h.tables[0].pools[6] = ownedPool{"a", []int{1, 2, 3}}
	unwanted := h.program()
	m := unwanted.Model()
	c := m.Table(unwanted.IPv4.ID())
	c.Chains["shared-1"] = &nft.Chain{Name: "shared-1", Rules: []nft.Rule{{nft.Unknown{}}}}
	_, s := apply(t, m, nft.Adopt(m, unwanted), unwanted, epoch)

	h.tables[0].pools[17] = ownedPool{"b", []int{1, 2, 3, 4, 5, 6, 7, 8}} // outgrows the map
	larger := h.program()
	_, s = apply(t, m, s, larger, epoch.Add(time.Second))
	if n := len(m.Table(c.Table).Chains["shared-1"].Rules); n > 0 {
		t.Fatalf("the chain has %d rules, want none: the test is about nothing", n)
	}

	h.tables[0].verdicts[80] = ownedVerdict{part: "a", chain: "shared-1"}
	wanted := h.program()
	b, _ := s.Plan(wanted, epoch.Add(2*time.Second))
	transactions := b.Transactions()
	if len(transactions) != 2 {
		t.Errorf("%d transactions, want the rules ahead of the element:\n%s", len(transactions), b)
	}
	for _, transaction := range transactions {
		checkTransaction(t, m, transaction)
		if err := strict.Apply(m, transaction); err != nil {
			t.Fatal(err)
		}
	}
	wantModel(t, wanted, m)
}

// TestJoin: batches of both families become one. Operations that go ahead in one family's
// batch also go ahead in the joined batch. Only takes the families apart again.
func TestJoin(t *testing.T) {
	split := 0
	withSeeds(t, 40, func(t *testing.T, rng *rand.Rand) {
		h, s := newHistory(rng), nft.State{}
		for range 20 {
			want := h.next()
			b, next := s.Plan(want, epoch)
			ip, _ := s.PlanTable(want.IPv4, epoch)
			ip6, _ := s.PlanTable(want.IPv6, epoch)
			if diff := cmp.Diff(transactionsText(b), transactionsText(nft.Join(ip, ip6))); diff != "" {
				t.Fatalf("joined (-Plan +Join):\n%s", diff)
			}
			for f, one := range map[nft.Family]nft.Batch{nft.IPv4: ip, nft.IPv6: ip6} {
				if diff := cmp.Diff(transactionsText(one), transactionsText(b.Only(f))); diff != "" {
					t.Fatalf("%s (-PlanTable +Only):\n%s", f, diff)
				}
			}
			if len(ip.Transactions())+len(ip6.Transactions()) == 3 {
				split++
			}
			s = next
		}
	})
	if split < 10 && !testing.Short() {
		t.Errorf("only %d times one family had two transactions: the histories vary too little", split)
	}
}

// transactionsText is the transactions as nft scripts.
func transactionsText(b nft.Batch) []string {
	var texts []string
	for _, transaction := range b.Transactions() {
		texts = append(texts, transaction.String())
	}
	return texts
}
