package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// counts are what a run has seen, by name. Their methods are safe for concurrent use.
type counts struct {
	mu      sync.Mutex
	began   time.Time
	events  map[string]int
	seen    map[string]int
	settles []time.Duration
	follows []time.Duration
	// most has the greatest values of the proxy's process.
	most map[string]int
}

func newCounts() *counts {
	return &counts{began: time.Now(), events: map[string]int{}, seen: map[string]int{}, most: map[string]int{}}
}

func (c *counts) event(verb string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events[verb]++
}

func (c *counts) add(what string) { c.addN(what, 1) }

func (c *counts) addN(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[what] += n
}

// excused counts what was lost for a reason that is not the proxy's.
func (c *counts) excused(what, cause string) { c.add("LOST, " + what + ": " + cause) }

// question counts a new connection.
func (c *counts) question(protocol string, a Answer, v Verdict, again int) {
	what := "new " + protocol + " connections "
	if v.Excuse != "" {
		c.excused(what+a.String(), v.Excuse)
		return
	}
	c.add(what + string(a.Kind))
	when := "while nothing changed"
	if v.Moving {
		when = "during a change"
	}
	if again > 0 {
		c.addN("packets of new "+protocol+" connections sent again, "+when, again)
	}
}

// message counts a datagram of an open flow.
func (c *counts) message(a Answer, v Verdict, again int) {
	switch {
	case v.Excuse != "":
		c.excused("datagrams of open flows "+a.String(), v.Excuse)
	case a.Was != "" && a.Was != a.Pod:
		c.add("open UDP flows moved from a pod that was removed")
	default:
		c.add("datagrams of open flows " + string(a.Kind))
	}
	if again > 0 {
		c.addN("datagrams of open flows sent again", again)
	}
}

func (c *counts) settled(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settles = append(c.settles, took)
}

func (c *counts) followed(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follows = append(c.follows, took)
}

// observe reads how large the proxy's process is.
func (c *counts) observe(pid int) {
	dir := fmt.Sprintf("/proc/%d", pid)
	status, err := os.ReadFile(dir + "/status")
	files, dirErr := os.ReadDir(dir + "/fd")
	if err != nil || dirErr != nil {
		return // it has ended, which others notice
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most["open files"] = max(c.most["open files"], len(files))
	for line := range strings.Lines(string(status)) {
		words := strings.Fields(line)
		if len(words) > 1 && slices.Contains([]string{"VmRSS:", "Threads:"}, words[0]) {
			n, _ := strconv.Atoi(words[1])
			c.most[words[0]] = max(c.most[words[0]], n)
		}
	}
}

// String is the report.
func (c *counts) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	total := 0
	for _, n := range c.events {
		total += n
	}
	fmt.Fprintf(&b, "%d events in %v: %s\n", total, time.Since(c.began).Round(time.Second), list(c.events))
	fmt.Fprintf(&b,
		"the tables were compared with a fresh compile and equal %d times; from the last event of a round: %s\n",
		len(c.settles), spread(c.settles))
	fmt.Fprintf(&b, "open flows had followed %d times; from the tables on: %s\n", len(c.follows), spread(c.follows))
	for _, what := range slices.Sorted(maps.Keys(c.seen)) {
		fmt.Fprintf(&b, "%9d %s\n", c.seen[what], what)
	}
	fmt.Fprintf(&b, "the process at most: %d MB in memory, %d threads, %d open files\n", c.most["VmRSS:"]/1024,
		c.most["Threads:"], c.most["open files"])
	return b.String()
}

// brief is one line of the report.
func (c *counts) brief() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	total, lost, connections := 0, 0, 0
	for _, n := range c.events {
		total += n
	}
	for what, n := range c.seen {
		if strings.HasPrefix(what, "LOST") {
			lost += n
		}
		if strings.HasPrefix(what, "new ") {
			connections += n
		}
	}
	return fmt.Sprintf("%v: %d events, %d times equal, %d new connections, %d lost with a reason",
		time.Since(c.began).Round(time.Second), total, len(c.settles), connections, lost)
}

func list(m map[string]int) string {
	names := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), strings.Compare(a, b))
	})
	var words []string
	for _, name := range names {
		words = append(words, fmt.Sprintf("%d %s", m[name], name))
	}
	return strings.Join(words, ", ")
}

// spread is a few quantiles.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(all))
	at := func(q float64) time.Duration {
		return sorted[int(q*float64(len(sorted)-1))].Round(time.Millisecond)
	}
	return fmt.Sprintf("median %v, 90 %% %v, 99 %% %v, most %v", at(0.5), at(0.9), at(0.99), at(1))
}
