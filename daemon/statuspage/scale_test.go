package statuspage_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen/statuspagetest"
)

// large is a snapshot of so many Services with an endpoint each.
func large(services int) service.Snapshot {
	b := snapshots.NewBuilder(statuspagetest.Node())
	statuspagetest.Many(b, services)
	return b.Snapshot()
}

// TestManyServices: each Service is on one page of the list, and no page is large.
func TestManyServices(t *testing.T) {
	const services = 4400
	p := newPage()
	p.Observe(statuspagetest.SyncOf(large(services)))
	seen := map[string]int{}
	for page := 1; ; page++ {
		a := get(t, p, "/status?page="+strconv.Itoa(page))
		if len(a.body) > 200<<10 {
			t.Fatalf("page %d has %d bytes", page, len(a.body))
		}
		for _, name := range names(a) {
			seen[name]++
		}
		if !regexp.MustCompile(">Next page<").MatchString(a.body) {
			break
		}
	}
	if len(seen) != services {
		t.Errorf("%d Services on all pages, want %d", len(seen), services)
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s is on %d pages", name, n)
		}
	}
	last := names(get(t, p, "/status?page=44"))
	if beyond := names(get(t, p, "/status?page=999999")); fmt.Sprint(beyond) != fmt.Sprint(last) || len(last) != 100 {
		t.Errorf("beyond the last page: %d Services; on it %d", len(beyond), len(last))
	}
	if got := names(get(t, p, "/status?q=10.100.17.7:80")); fmt.Sprint(got) != "[ns-59/svc-4359]" {
		t.Errorf("the search finds %v", got)
	}
}

// TestLargeService: a Service with thousands of endpoints, addresses and ports has pages of
// a bounded size, which show every endpoint.
func TestLargeService(t *testing.T) {
	const endpoints, ports, addresses = 500, 120, 300
	s := service.Service{Name: "ns/large", ClusterIPs: statuspagetest.Addrs("10.96.0.1")}
	for i := range addresses {
		s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}))
	}
	for number := range ports {
		var list []service.Endpoint
		for i := range endpoints {
			list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8),
				byte(i)}), uint16(number+1)), Ready: true})
		}
		s.Ports = append(s.Ports, service.Port{Name: fmt.Sprint("p", number), Protocol: service.UDP, Port: uint16(number + 1),
			Endpoints: service.MergeEndpoints(list)})
	}
	b := snapshots.NewBuilder(statuspagetest.Node())
	b.SetMaxElements(1 << 30)
	b.SetMaxAllElements(1 << 30)
	b.Set(&s)
	p := newPage()
	p.Observe(statuspagetest.SyncOf(b.Snapshot()))
	if n := len(get(t, p, "/status?service=ns/large").body); n > 1<<20 {
		t.Errorf("the page has %d bytes", n)
	}
	seen := map[string]bool{}
	for page := 1; page <= endpoints/100; page++ {
		a := get(t, p, fmt.Sprintf("/status?service=ns/large&port=120&page=%d", page))
		if len(a.body) > 200<<10 {
			t.Errorf("page %d has %d bytes", page, len(a.body))
		}
		for _, th := range elements(elements(a.doc, "table")[1], "th") {
			if attribute(th, "scope") == "row" {
				seen[words(th)] = true
			}
		}
	}
	if len(seen) != endpoints {
		t.Errorf("%d endpoints on all pages, want %d", len(seen), endpoints)
	}
}

// TestConcurrent: syncs and readers do not disturb each other (for the race detector).
func TestConcurrent(t *testing.T) {
	p := newPage()
	snapshots := []service.Snapshot{large(10), large(50), statuspagetest.Cluster().Snapshot()}
	var readers sync.WaitGroup
	stop := make(chan struct{})
	readers.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				p.Observe(statuspagetest.SyncOf(snapshots[i%len(snapshots)]))
			}
		}
	})
	var askers sync.WaitGroup
	for range 4 {
		askers.Go(func() {
			for range 2 {
				for _, target := range targets() {
					if a := ask(t, p, http.MethodGet, target); a.StatusCode >= 500 && a.StatusCode != http.StatusServiceUnavailable {
						t.Errorf("%s: %s", target, a.Status)
					}
				}
			}
		})
	}
	askers.Wait()
	close(stop)
	readers.Wait()
}

// BenchmarkOverview has the cost of a page about a large cluster, and of taking note of a sync.
func BenchmarkOverview(b *testing.B) {
	s := statuspagetest.SyncOf(large(44000))
	b.Run("page", func(b *testing.B) {
		p := newPage()
		p.Observe(s)
		for b.Loop() {
			get(b, p, "/status?q=10.100.17.7:80")
		}
	})
	b.Run("observe", func(b *testing.B) {
		p := newPage()
		b.ReportAllocs()
		for b.Loop() {
			p.Observe(s)
		}
	})
}
