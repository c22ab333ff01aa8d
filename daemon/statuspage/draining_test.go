package statuspage_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/statuspage"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/test/gen/statuspagetest"
)

// TestDraining: endpoints that drain are there with the number of their connections, and
// those that get new connections are not.
func TestDraining(t *testing.T) {
	p := newPage(func(c *statuspage.Config) {
		c.Connections = func(_ context.Context, s service.Snapshot) (*inspect.Connections, error) {
			return statuspagetest.Connections(s), errors.New("dump interrupted")
		}
	})
	p.Observe(statuspagetest.SyncOf(statuspagetest.Cluster().Snapshot()))
	if got := words(get(t, p, "/status").doc); !strings.Contains(got, "Draining endpoints and their connections") {
		t.Error("the overview has no link")
	}
	a := get(t, p, "/status?view=draining")
	var rows []string
	for _, tr := range elements(elements(a.doc, "tbody")[0], "tr") {
		rows = append(rows, words(tr))
	}
	if want := []string{"10.244.9.9:80 e/first 80/tcp 3 0",
		"10.244.1.9:8080 a/serving 80/tcp 2 0"}; fmt.Sprint(rows) != fmt.Sprint(want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
	for _, want := range []string{"2 endpoints with 5 connections", "Connections may be missing: dump interrupted"} {
		if !strings.Contains(words(a.doc), want) {
			t.Errorf("the page lacks %q: %s", want, words(a.doc))
		}
	}
	checkLandmarks(t, a.doc)
	checkHeadings(t, a.doc)
	checkTables(t, a.doc)
}

// TestLooksAreRationed: whoever loads the page all the time makes the daemon look at
// connection tracking once in ten seconds, and where a look takes long, for 1 % of the time.
func TestLooksAreRationed(t *testing.T) {
	for took, most := range map[time.Duration]int{0: 13, 50 * time.Millisecond: 13, time.Second: 2} {
		synctest.Test(t, func(t *testing.T) {
			looks := 0
			p := newPage(func(c *statuspage.Config) {
				c.Connections = func(_ context.Context, s service.Snapshot) (*inspect.Connections, error) {
					looks++
					time.Sleep(took)
					return inspect.NewConnections(conntrack.NewIndex(conntrack.Options{})), nil
				}
			})
			p.Observe(statuspagetest.SyncOf(statuspagetest.Cluster().Snapshot()))
			if !strings.Contains(words(get(t, p, "/status?view=draining").doc), "No such endpoint has connections") {
				t.Error("the first look is not shown")
			}
			if got := words(get(t, p, "/status?view=draining").doc); !strings.Contains(got,
				"they are rationed, and this one is shown again") {
				t.Errorf("the second request does not say that it shows the same: %s", got)
			}
			for range 120 {
				time.Sleep(time.Second)
				get(t, p, "/status?view=draining")
			}
			if looks < most-1 || looks > most {
				t.Errorf("looks of %s: %d in two minutes, want %d", took, looks, most)
			}
		})
	}
}
