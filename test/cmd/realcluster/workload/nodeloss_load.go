package workload

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

// lossLoad sends requests at a rate, whatever becomes of those before: each on a new connection, and beside them on
// connections that clients keep.
type lossLoad struct {
	web *Web
	to  []entrance
	// every is the time between two new connections.
	every time.Duration
	kept  int

	mu  sync.Mutex
	all []lossRequest
}

// entrance is an address that clients ask, with words for it.
type entrance struct {
	netip.AddrPort
	name string
}

type lossRequest struct {
	clients string
	began   time.Time
	took    time.Duration
	err     error
}

func (r *lossRequest) slow() bool { return r.err == nil && r.took > slowRequest }

// start begins the load. stop ends it and waits for the last request.
func (l *lossLoad) start(ctx context.Context) (stop func() error) {
	var group sync.WaitGroup
	done := make(chan struct{})
	group.Go(func() {
		ticker := time.NewTicker(l.every)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			group.Go(func() {
				service := i % len(l.to)
				l.note(ctx, l.clients("new", service), func(ctx context.Context) error {
					_, err := l.web.Get(ctx, l.to[service].AddrPort, "/hostname")
					return err
				})
			})
		}
	})
	for i := range l.kept * len(l.to) {
		group.Go(func() { l.keep(ctx, i%len(l.to), time.Duration(i)*keptPeriod/time.Duration(l.kept*len(l.to)), done) })
	}
	return func() error {
		close(done)
		group.Wait()
		return ctx.Err()
	}
}

// clients names the clients of a kind by what they ask.
func (l *lossLoad) clients(kind string, service int) string {
	return kind + " connections, " + l.to[service].name
}

// keep is a client with one connection. It makes another one when a request has failed, as HTTP clients do.
func (l *lossLoad) keep(ctx context.Context, service int, offset time.Duration, done <-chan struct{}) {
	var c *connection
	forget := func() {
		if c != nil {
			_ = c.Close() // It has failed, or is not needed any more.
		}
		c = nil
	}
	defer func() { forget() }()
	next := time.NewTimer(offset)
	defer next.Stop()
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-next.C:
			next.Reset(keptPeriod)
		}
		l.note(ctx, l.clients("kept", service), func(ctx context.Context) (err error) {
			if c == nil {
				if c, err = dial(ctx, l.web.Outside, l.to[service].AddrPort); err != nil {
					c = nil
					return err
				}
			}
			if _, err = c.get(ctx, "/hostname", false); err != nil {
				forget()
			}
			return err
		})
	}
}

func (l *lossLoad) note(ctx context.Context, clients string, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	r := lossRequest{clients: clients, began: time.Now()}
	r.err = do(ctx)
	r.took = time.Since(r.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r)
}

// report writes a row for each kind of clients and each second, and what can be said of all. Second 0 is all of the
// time before the cut.
func (l *lossLoad) report(out io.Writer, cut time.Time) error {
	type row struct{ all, slow, failed int }
	rows := map[string]map[int]row{}
	last := map[string]time.Duration{}
	why, anyPort := map[string]int{}, regexp.MustCompile(`:\d+\b`)
	for _, r := range l.all {
		second := 0
		if !r.began.Before(cut) {
			second = int(r.began.Sub(cut)/time.Second) + 1
		}
		if rows[r.clients] == nil {
			rows[r.clients] = map[int]row{}
		}
		sum := rows[r.clients][second]
		rows[r.clients][second] = row{sum.all + 1, sum.slow + boolInt(r.slow()), sum.failed + boolInt(r.err != nil)}
		if (r.err != nil || r.slow()) && second > 0 {
			last[r.clients] = max(last[r.clients], r.began.Sub(cut))
		}
		if r.err != nil {
			why[fmt.Sprintf("%s: %s", r.clients, anyPort.ReplaceAllString(r.err.Error(), ""))]++
		}
	}
	w := csv.NewWriter(out)
	if err := w.Write([]string{"clients", "second", "requests", "slow", "failed"}); err != nil {
		return err
	}
	for _, clients := range slices.Sorted(maps.Keys(rows)) {
		for _, second := range slices.Sorted(maps.Keys(rows[clients])) {
			r := rows[clients][second]
			if err := w.Write([]string{clients, strconv.Itoa(second), strconv.Itoa(r.all), strconv.Itoa(r.slow),
				strconv.Itoa(r.failed)}); err != nil {
				return err
			}
		}
	}
	if w.Flush(); w.Error() != nil {
		return w.Error()
	}
	for _, clients := range slices.Sorted(maps.Keys(rows)) {
		sum := row{}
		for second, r := range rows[clients] {
			if second > 0 {
				sum = row{sum.all + r.all, sum.slow + r.slow, sum.failed + r.failed}
			}
		}
		fmt.Fprintf(out, "# %s, after the cut: %d requests, %d slower than %v, %d failed within %v; the last of these "+
			"began after %v\n",
			clients, sum.all, sum.slow, slowRequest, sum.failed, requestPatience, last[clients].Round(10*time.Millisecond))
	}
	const most = 10
	reasons := slices.SortedFunc(maps.Keys(why), func(a, b string) int { return cmp.Compare(why[b], why[a]) })
	for _, reason := range reasons[:min(most, len(reasons))] {
		fmt.Fprintf(out, "# %d times: %s\n", why[reason], reason)
	}
	return nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
