package main

import (
	"net/netip"
	"sync"
	"time"

	"nftproxy/test/cmd/soak/script"
)

// silence is how long a Service may be silent while nothing changes, beyond what the
// machine is slow by. A first packet that is lost is sent again within three seconds.
const silence = 5 * time.Second

// witness asks pods at their own addresses, all the time. No Service takes part, so its
// delays are those of the machine: a client that waits longer waits for the rules.
type witness struct {
	mu sync.Mutex
	// asks are its questions of the last minutes, in the order of their beginnings.
	asks []ask
}

// ask is a question that was under way between two times.
type ask struct{ began, ended time.Time }

// witnessMemory is longer than any client waits.
const witnessMemory = 2 * longest

// run asks until the traffic ends.
func (w *witness) run(t *traffic) {
	for n := 0; t.ctx.Err() == nil; n++ {
		pods := script.Pods()
		pod := t.w.Pod(pods[n%len(pods)])
		to := netip.AddrPortFrom(pod.Addrs[n/len(pods)%len(pod.Addrs)], targetPorts()[0])
		began := time.Now()
		d, err := openUDP(t.ctx, t.w.Pod("client").NS, t.freshSource(Question{To: to}), to)
		if err == nil {
			_, _, _, err = d.ask(shortest, int(longest/shortest), func() bool { return t.ctx.Err() == nil })
			d.conn.Close()
		}
		if err == nil {
			w.note(began, time.Now())
		}
		select {
		case <-t.ctx.Done():
		case <-time.After(betweenSteps):
		}
	}
}

// note keeps a question.
func (w *witness) note(began, ended time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.asks) > 0 && ended.Sub(w.asks[0].ended) > witnessMemory {
		w.asks = w.asks[1:]
	}
	w.asks = append(w.asks, ask{began, ended})
}

// delay is the longest time without an answer for the witness itself between two times: of
// one question, or between two of them.
func (w *witness) delay(from, to time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest, last := time.Duration(0), from
	for _, a := range w.asks {
		if a.ended.Before(from) || a.began.After(to) {
			continue
		}
		longest = max(longest, a.ended.Sub(a.began), a.ended.Sub(last))
		last = a.ended
	}
	return max(longest, to.Sub(last))
}

// tooLong says whether a client that had no answer between two times waited for the rules
// and not for the machine.
func (w *witness) tooLong(from, to time.Time) bool {
	took := to.Sub(from)
	return took > silence && took > silence+2*w.delay(from, to)
}
