package pace

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// tenant changes something every so often, and each change costs that much.
type tenant struct {
	name        string
	cost, every time.Duration

	// since is when the change that waits came, zero for none. spent and longest are what its changes cost, and how long
	// they waited.
	since          time.Time
	next           time.Time
	spent, longest time.Duration
}

// serve has the tenants change for that long. Whose change may go on goes first, and debtors go one at a time. It
// returns what counted for everybody.
func serve(a *Accounts, tenants []*tenant, during time.Duration) (common time.Duration) {
	start := time.Unix(1_800_000_000, 0)
	now := start
	for _, t := range tenants {
		t.next = start
	}
	for now.Sub(start) < during {
		shares, cost, debtors := map[string]int{}, time.Duration(0), 0
		for _, t := range tenants {
			if t.since.IsZero() && !now.Before(t.next) {
				t.since, t.next = t.next, now.Add(t.every)
			}
		}
		slices.SortStableFunc(tenants, func(a, b *tenant) int { return a.since.Compare(b.since) })
		for _, t := range tenants {
			if t.since.IsZero() {
				continue
			}
			ready, debtor := a.Ready(now, t.name, t.since)
			if debtor && (ready.After(now) || debtors > 0) {
				continue
			}
			if debtor {
				debtors++
			}
			t.spent, t.longest = t.spent+t.cost, max(t.longest, now.Sub(t.since)+t.cost)
			shares[t.name], cost, t.since = int(t.cost), cost+t.cost, time.Time{}
			if t.next.Before(now) { // Changes that came while it waited went with it.
				t.next = now
			}
		}
		if cost == 0 {
			now = now.Add(5 * time.Millisecond)
			continue
		}
		now = now.Add(cost)
		common += a.Charge(now, cost, shares)
	}
	return common
}

// TestAccounts: tenants whose changes cost much pay for them: together they take a twentieth of the time in the long
// run, or what Longest asks for. They wait for Longest at most beside the work of others. The changes of others wait
// for one such change at most.
func TestAccounts(t *testing.T) {
	const during, large = 5 * time.Minute, 150 * time.Millisecond
	for _, hostile := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(hostile), func(t *testing.T) {
			a := &Accounts{Rest: 20, Burst: 2 * time.Second, Longest: 10 * time.Second}
			quiet := &tenant{name: "quiet", cost: time.Millisecond, every: 97 * time.Millisecond}
			tenants := []*tenant{quiet}
			for i := range hostile {
				tenants = append(tenants, &tenant{name: fmt.Sprint("hostile-", i), cost: large, every: 200 * time.Millisecond})
			}
			common := serve(a, tenants, during)
			spent := time.Duration(0)
			for _, h := range tenants {
				if h == quiet {
					continue
				}
				spent += h.spent
				if h.longest > a.Longest+time.Duration(hostile+1)*large {
					t.Errorf("%s waited for %v", h.name, h.longest)
				}
			}
			t.Logf("hostile %v, quiet %v, of everybody %v; quiet waited for %v", spent, quiet.spent, common, quiet.longest)
			if most := max(during/20, time.Duration(hostile)*large*(during/a.Longest)) + time.Duration(hostile)*(a.Burst+
				3*large); spent > most || spent < during/25 {
				t.Errorf("the hostile ones took %v, want %v at most", spent, most)
			}
			if most := 2*time.Duration(hostile)*(a.Burst+large) + quiet.spent; common > most {
				t.Errorf("%v counted for everybody, want %v at most", common, most)
			}
			if most := time.Duration(hostile)*large + 10*time.Millisecond; quiet.longest > most {
				t.Errorf("the quiet one waited for %v, want %v at most", quiet.longest, most)
			}
		})
	}
}

// TestAccountsForget: a debtor is none any more after a while, whatever it has spent, and accounts that owe nothing
// take no memory: they are as if they were new.
func TestAccountsForget(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	a := &Accounts{Rest: 20, Burst: 2 * time.Second, Longest: 10 * time.Second}
	now := time.Unix(1_800_000_000, 0)
	for range 10_000 {
		a.Charge(now, time.Second, map[string]int{fmt.Sprint(rng.IntN(1 << 30)): 1, "hostile": 3})
		now = now.Add(time.Second)
	}
	if n := len(a.each); n > 1000 {
		t.Errorf("%d accounts", n)
	}
	if _, debtor := a.Ready(now, "hostile", now); !debtor {
		t.Error("it is no debtor")
	}
	if _, debtor := a.Ready(now.Add(41*time.Second), "hostile", now); debtor {
		t.Error("it is still a debtor")
	}
	if left := a.Charge(now, time.Second, nil); left != time.Second {
		t.Errorf("of work that nobody caused %v count", left)
	}
}
