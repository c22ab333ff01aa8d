package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// TestHeld: Services of a namespace in debt keep their last version until the debtors may go on, one large one at a
// time, and after ten seconds at the latest. Those of others, and the API server's, change at once. A report says so
// once.
func TestHeld(t *testing.T) {
	a := &pace.Accounts{Rest: 20, Burst: 2 * time.Second, Longest: 10 * time.Second}
	w := NewWatcher(Options{Node: "node-0", Accounts: a}, service.NewMailbox())
	ix, now := w.index, time.Unix(1_800_000_000, 0)
	endpoints := func(namespace, name string, n int) {
		s := grabbing(name, 0, fmt.Sprintf("10.96.0.%d", len(name)))
		s.Namespace = namespace
		ix.setService(convertService(s))
		slice := sliceFor(s, name, "10.244.0.1")
		for i := range n - 1 {
			e := slice.Endpoints[0]
			e.Addresses = []string{fmt.Sprintf("10.244.%d.%d", 1+i/200, 1+i%200)}
			slice.Endpoints = append(slice.Endpoints, e)
		}
		ix.setSlice(convertSlice(slice))
	}
	inForce := func(after time.Duration, name service.Name) int {
		now = now.Add(after)
		ix.at, ix.releases = now, true
		s := ix.flush().Services.At(name)
		if s == nil {
			return -1
		}
		return s.Ports[0].Endpoints.Len()
	}
	want := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d endpoints, want %d", what, got, want)
		}
	}
	endpoints("tenant", "a", 500)
	endpoints("tenant", "bb", 500)
	endpoints("other", "ccc", 1)
	want("at first", inForce(0, "tenant/a"), 500)
	for range 3 { // The last one is a debtor's.
		a.Charge(now, 1900*time.Millisecond, map[string]int{"tenant": 3, "other": 0})
	}
	endpoints("tenant", "a", 400)
	endpoints("tenant", "bb", 400)
	endpoints("other", "ccc", 2)
	endpoints("default", "kubernetes", 1)
	a.Charge(now, time.Second, map[string]int{"default": 1})
	want("another's", inForce(time.Second, "other/ccc"), 2)
	want("the API server's", inForce(0, kubernetesService), 1)
	want("held", inForce(0, "tenant/a"), 500)
	if !ix.due.Equal(now.Add(10 * time.Second)) {
		t.Errorf("due at %v, want after 10 s", ix.due.Sub(now))
	}
	want("held for 5 s", inForce(4*time.Second, "tenant/a"), 500)
	inForce(time.Second, "tenant/a")
	if got := texts(ix.takeProblems()); strings.Count(got, "its changes wait, for 10s at most: on this node those of "+
		"its namespace take more than 1/20 of a core") != 2 {
		t.Errorf("reported:\n%s", got)
	}
	want("after 10 s", inForce(5*time.Second, "tenant/a"), 400)
	want("the second one", inForce(0, "tenant/bb"), 400)
	if got := texts(ix.takeProblems()); got != "" || !ix.due.IsZero() {
		t.Errorf("at the end due at %v, reported:\n%s", ix.due, got)
	}
}

// TestSlotsInDebt: whatever feedback costs a namespace, it puts none in debt, and a debt ends as soon as if there were
// no feedback. Then slots move again, as often as the account has room. Those of other namespaces move all the time.
func TestSlotsInDebt(t *testing.T) {
	for _, ms := range []time.Duration{3, 12, 40, 250} {
		t.Run(fmt.Sprint(ms, " ms"), func(t *testing.T) { slotsInDebt(t, ms*time.Millisecond) })
	}
}

func slotsInDebt(t *testing.T, cost time.Duration) {
	const rest = 20
	a := &pace.Accounts{Rest: rest, Burst: 2 * time.Second, Longest: 10 * time.Second}
	w := NewWatcher(Options{Node: "node-0", Accounts: a}, service.NewMailbox())
	now := time.Unix(1_800_000_000, 0)
	w.now = func() time.Time { return now }
	feeding := func(namespace, addr string) service.Name {
		s := grabbing("web", 0, addr)
		s.Namespace, s.Annotations = namespace, map[string]string{"nftproxy.io/balance": "least-connections"}
		w.index.setService(convertService(s))
		slice := sliceFor(s, "web", "10.244.0.1")
		slice.Endpoints = append(slice.Endpoints, slice.Endpoints[0])
		slice.Endpoints[1].Addresses = []string{"10.244.0.2"}
		w.index.setSlice(convertSlice(slice))
		return service.NewName(namespace, "web")
	}
	tenant, other := feeding("tenant", "10.96.0.1"), feeding("other", "10.96.0.2")
	flush := func() service.Snapshot {
		w.index.at, w.index.releases = now, true
		return w.index.flush()
	}
	// moves has the endpoints of a Service get other slots, and says whether they have.
	moves := func(name service.Name) bool {
		s, next := flush().Services.At(name), service.Slotted{}
		for e := range s.Ports[0].Endpoints.All() {
			next[s.Ports[0].At(e.Addr)] = service.Slots{Cluster: 16 + (e.Slots.Cluster+1)%2}
		}
		w.SetSlots(map[service.Name]service.Slotted{name: next})
		return flush().Services.At(name) != s
	}
	const seconds, burst = 600, 100
	inDebt, moved := 0, 0
	for second := range seconds {
		if now = now.Add(time.Second); second == burst {
			a.Charge(now, 2500*time.Millisecond, map[string]int{"tenant": 1})
		}
		if !moves(other) {
			t.Fatalf("after %d s: the slots of another namespace do not move", second)
		}
		_, debtor := a.Ready(now, "tenant", now)
		if debtor {
			inDebt++
		}
		if !moves(tenant) {
			continue
		}
		if moved++; debtor {
			t.Fatalf("after %d s: slots move in debt", second)
		}
		a.Charge(now, cost, map[string]int{"tenant": 1})
	}
	if inDebt < 1 || inDebt > 40 {
		t.Errorf("in debt for %d s, want those 40 at most that the burst alone takes", inDebt)
	}
	// Half of the burst is refilled in 20 s after the debt.
	least := min(seconds-100, int(time.Duration(seconds-100)*time.Second/cost)/rest)
	if moved < least {
		t.Errorf("slots have moved %d times, want %d", moved, least)
	}
}
