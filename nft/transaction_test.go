package nft_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"nftproxy/nft"
)

// TestTransactions: done one after the other they leave what the batch does, no
// chain of a table in use is new in the transaction with the element that points
// to it, and none is made without its rules.
func TestTransactions(t *testing.T) {
	split := 0
	seeds(t, 40, func(t *testing.T, rng *rand.Rand) {
		h, m, s, now := newHistory(rng), nft.NewModel(), nft.State{}, epoch
		for range 50 {
			want := h.next()
			b, next := s.Plan(want, now)
			size := 0
			for _, transaction := range b.Transactions() {
				checkTransaction(t, transaction)
				if err := m.Apply(transaction); err != nil {
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
		t.Errorf("only %d batches in more than one transaction: the histories are too narrow", split)
	}
}

func checkTransaction(t *testing.T, b nft.Batch) {
	t.Helper()
	made := map[string]bool{}
	fresh := map[nft.TableID]bool{}
	for _, op := range b.Ops {
		table := nft.TableOf(op)
		switch op := op.(type) {
		case nft.AddTable:
			fresh[table] = true
		case nft.AddChain:
			made[table.String()+op.Chain.Name] = op.Chain.Hook == nil
		case nft.AddElements:
			for _, e := range op.Elements {
				if !fresh[table] && made[table.String()+e.Verdict.Chain] {
					t.Fatalf("chain %s is new, and there is an element that points to it:\n%s", e.Verdict.Chain, b)
				}
			}
		}
	}
}

// TestTransactionsOfAFirstProgram: nobody is sent into a table before all of it
// is there.
func TestTransactionsOfAFirstProgram(t *testing.T) {
	b, _ := nft.State{}.Plan(newHistory(rand.New(rand.NewPCG(1, 2))).next(), epoch)
	if n := len(b.Transactions()); n != 1 {
		t.Errorf("a first program goes in by %d transactions", n)
	}
}
