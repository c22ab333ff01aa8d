package statuspage

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/health"
	"nftproxy/daemon/proxy"
	"nftproxy/model/pace"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

func readyPage() *Page {
	p := New(Config{
		Ready:    func() (bool, string) { return true, "ok" },
		Status:   func() health.Status { return health.Status{Healthy: true} },
		Problems: func(service.Name) []string { return nil },
	})
	p.Observe(proxy.Sync{Snapshot: snapshots.NewBuilder(service.Node{}).Snapshot()})
	return p
}

func ask(p *Page) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:10249"+Path, nil))
	return w
}

// TestBudget: who loads the page all the time is refused, with the time to come back, and
// the page is there again at that time.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := readyPage()
		if w := ask(p); w.Code != http.StatusOK {
			t.Fatalf("at first: %d", w.Code)
		}
		// Time stands still in the bubble while the page works, so the work is noted here.
		budget := <-p.turn
		budget.Spend(time.Now(), burst+time.Second)
		p.turn <- budget
		w := ask(p)
		if w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "used up its share") {
			t.Fatalf("after %s of work: %d %s", burst+time.Second, w.Code, w.Body)
		}
		seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
		if err != nil || seconds < rest || seconds > rest+1 {
			t.Fatalf("Retry-After %q, want %d s", w.Header().Get("Retry-After"), rest)
		}
		time.Sleep(time.Duration(seconds) * time.Second)
		if w := ask(p); w.Code != http.StatusOK {
			t.Errorf("after %d s: %d", seconds, w.Code)
		}
	})
}

// TestBudgetCounts: work for a page is noted.
func TestBudgetCounts(t *testing.T) {
	p := readyPage()
	p.config.Ready = func() (bool, string) {
		begun := time.Now()
		for time.Since(begun) < time.Millisecond { // work
		}
		return true, "ok"
	}
	<-p.turn
	p.turn <- &pace.Budget{Rest: 1 << 20}
	if w := ask(p); w.Code != http.StatusOK {
		t.Fatalf("at first: %d", w.Code)
	}
	if w := ask(p); w.Code != http.StatusTooManyRequests {
		t.Errorf("after a millisecond of work without a budget: %d", w.Code)
	}
}

// TestInFlight: more requests than are worked on at a time are refused at once.
func TestInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := readyPage()
		leave := make(chan struct{})
		p.config.Ready = func() (bool, string) {
			<-leave
			return true, "ok"
		}
		codes := make(chan int, maxInFlight)
		for range maxInFlight {
			go func() { codes <- ask(p).Code }()
		}
		synctest.Wait()
		if w := ask(p); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(),
			"Too many requests at once") {
			t.Errorf("one too many: %d", w.Code)
		}
		close(leave)
		for range maxInFlight {
			if code := <-codes; code != http.StatusOK {
				t.Errorf("a request that waited: %d", code)
			}
		}
		if w := ask(p); w.Code != http.StatusOK {
			t.Errorf("after that: %d", w.Code)
		}
	})
}
