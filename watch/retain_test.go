package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/model/service"
)

// lists is a watcher that gets its lists and events from the test, by a fake clock.
type lists struct {
	*testing.T
	*Watcher
	services *listWatch[*serviceObject]
	slices   *listWatch[*sliceObject]
	out      *service.Mailbox
	last     service.Snapshot
	// mu is for the race detector, which does not know the order of time in a bubble.
	mu       sync.Mutex
	problems []Problem
}

// retainFor is the period of the tests.
const retainFor = 5 * time.Minute

// withLists runs the test in a bubble with a watcher that follows n uniform Services.
func withLists(t *testing.T, n int, test func(l *lists)) {
	synctest.Test(t, func(t *testing.T) {
		l := newLists(t, Options{Retain: retainFor})
		l.list(n, n)
		l.setSynced()
		l.settle()
		test(l)
	})
}

func newLists(t *testing.T, opts Options) *lists {
	l := &lists{T: t, out: service.NewMailbox()}
	opts.Node = "node-0"
	opts.Report = func(p Problem) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.problems = append(l.problems, p)
	}
	l.Watcher = NewWatcher(opts, l.out)
	l.services = newListWatch(l.Watcher, "services", (*index).knownServices)
	l.slices = newListWatch(l.Watcher, "endpointslices", (*index).knownSlices)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go l.loop(ctx)
	return l
}

// list has the API server list the first of the uniform Services and slices.
func (l *lists) list(services, slices int) {
	l.listServices(services)
	l.listSlices(slices)
}

func (l *lists) listServices(n int) {
	var all []*serviceObject
	for i := range n {
		all = append(all, convertService(uniformService(i)))
	}
	l.services.replace(all)
}

func (l *lists) listSlices(n int) {
	var all []*sliceObject
	for i := range n {
		all = append(all, convertSlice(uniformSlice(i, 2)))
	}
	l.slices.replace(all)
}

// settle waits until everything is published.
func (l *lists) settle() {
	synctest.Wait()
	if u, ok := l.out.Take(); ok {
		l.last = u.Snapshot
	}
}

// want compares what is retained, as "service" or "endpoints" by the Service's number, and
// the number of all Services that have endpoints.
func (l *lists) want(when string, retained map[string]int, serving int) {
	l.Helper()
	l.settle()
	got, n := map[string]int{}, 0
	for _, s := range l.last.Services.All() {
		if s.Retained != service.RetainedNothing {
			got[s.Retained.String()]++
		}
		if s.HasEndpoints() {
			n++
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(retained) || n != serving {
		l.Errorf("%s: retained %v and %d serving, want %v and %d", when, got, n, retained, serving)
	}
	total := got["service"] + got["endpoints"]
	if r := l.Retained(); r.Services != total {
		l.Errorf("%s: %q, want %d Services", when, r, total)
	}
}

// service returns the i-th uniform Service as it was published last.
func (l *lists) service(i int) *service.Service {
	s := uniformService(i)
	return l.last.Services.At(service.NewName(s.Namespace, s.Name))
}

// took returns the problems of a type, and forgets all.
func took[E error](l *lists) (list []E) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.problems {
		if e := *new(E); errors.As(p, &e) {
			list = append(list, e)
		}
	}
	l.problems = nil
	return list
}

func services(n int) map[string]int  { return map[string]int{"service": n} }
func endpoints(n int) map[string]int { return map[string]int{"endpoints": n} }

// TestRetainOnEmptyLists: a running proxy gets lists that are empty, in either order. All
// is served on, for five minutes and not longer.
func TestRetainOnEmptyLists(t *testing.T) {
	for name, relist := range map[string]func(*lists){
		"Services first": func(l *lists) { l.list(0, 0) },
		"slices first":   func(l *lists) { l.listSlices(0); l.settle(); l.listServices(0) },
	} {
		t.Run(name, func(t *testing.T) {
			withLists(t, 20, func(l *lists) {
				before := l.service(3).String()
				relist(l)
				l.want("after the lists", services(20), 20)
				if got := strings.Replace(l.service(3).String(), "  retained service\n", "", 1); got != before {
					t.Errorf("served on as\n%swas\n%s", got, before)
				}
				time.Sleep(retainFor - time.Second)
				l.want("before the end", services(20), 20)
				if e := took[*RetainedError](l); len(e) == 0 || e[0].Missing != 20 || e[0].Serving != 20 ||
					!strings.HasPrefix(e[0].Examples, "ns-0/svc-0, ns-1/svc-1, ns-10/svc-10, ...") {
					t.Errorf("reported %v", e)
				}
				time.Sleep(time.Second)
				l.want("after the end", nil, 0)
				if l.last.Services.Len() != 0 {
					t.Errorf("left:\n%s", l.last)
				}
				if e := took[*RemovedError](l); len(e) != 1 || e[0].Services != 20 {
					t.Errorf("reported %v", e)
				}
			})
		})
	}
}

// TestRetainOnlySlices: the list of EndpointSlices is empty, the Services are there.
func TestRetainOnlySlices(t *testing.T) {
	withLists(t, 20, func(l *lists) {
		l.listSlices(0)
		l.want("after the list", endpoints(20), 20)
		l.change(convertSlice(uniformSlice(0, 1)).put)
		l.want("when a slice comes", endpoints(19), 20)
		if got := l.service(0).Ports[0].Endpoints.Len(); got != 1 {
			t.Errorf("the Service whose slice came has %d endpoints, want the slice's 1", got)
		}
		l.change(convertSlice(uniformSlice(1, 0)).put)
		l.want("when a slice without endpoints comes", endpoints(18), 19)
		l.change(convertService(uniformService(2)).drop)
		l.want("when a Service is deleted", endpoints(17), 18)
		l.change(convertSlice(uniformSlice(0, 1)).drop)
		l.want("when a slice is deleted", endpoints(17), 17)
		changed := uniformService(3)
		changed.Spec.Ports[0].Port = 81
		l.change(convertService(changed).put)
		l.want("when a Service changes", endpoints(17), 17)
		if got := l.service(3).Ports[0].Port; got != 81 {
			t.Errorf("the Service that changed has port %d", got)
		}
		time.Sleep(retainFor)
		l.want("after the end", nil, 0)
		if got := l.last.Services.Len(); got != 19 {
			t.Errorf("%d Services are left", got)
		}
	})
}

// TestRetainOnlyServices: the list of Services is empty, the slices are there and go on
// changing.
func TestRetainOnlyServices(t *testing.T) {
	withLists(t, 20, func(l *lists) {
		l.listServices(0)
		l.want("after the list", services(20), 20)
		l.change(convertSlice(uniformSlice(0, 5)).put)
		l.settle()
		if got := l.service(0).Ports[0].Endpoints.Len(); got != 5 {
			t.Errorf("%d endpoints, want those of the slice, which has changed to 5", got)
		}
		l.listSlices(0)
		l.want("without slices", services(20), 20)
		if got := l.service(0).Ports[0].Endpoints.Len(); got != 5 {
			t.Errorf("%d endpoints, want the last ones, 5", got)
		}
		l.change(convertService(uniformService(0)).put)
		l.want("when a Service comes back", map[string]int{"service": 19, "endpoints": 1}, 20)
		l.listSlices(20)
		l.want("when the slices are back", services(19), 20)
		l.listServices(20)
		l.want("when all are back", nil, 20)
		l.listServices(8)
		l.want("when most are missing again", services(12), 20)
		time.Sleep(retainFor)
		l.want("after the end", nil, 8)
	})
}

// TestRetainByTwoLists: what one list lacks and what the next one lacks count together.
func TestRetainByTwoLists(t *testing.T) {
	withLists(t, 20, func(l *lists) {
		l.list(8, 8)
		l.want("after the first", services(12), 20)
		took[*RetainedError](l)
		l.list(8, 8)
		l.want("after the same again", services(12), 20)
		if e := took[*RetainedError](l); len(e) != 0 {
			t.Errorf("nothing more is missing, and reported %v", e)
		}
		time.Sleep(time.Minute)
		l.listSlices(0)
		l.want("without slices", map[string]int{"service": 12, "endpoints": 8}, 20)
		l.listServices(0)
		l.want("after the last", services(20), 20)
		if e := took[*RetainedError](l); len(e) == 0 || e[0].Missing != 20 || e[0].Serving != 20 {
			t.Errorf("reported %v", e)
		}
		time.Sleep(retainFor - time.Minute)
		l.want("when the time of the first is over", services(8), 8)
		time.Sleep(time.Minute)
		l.want("after the end", nil, 0)
	})
}

// TestRetainNothing: what is not suspicious counts at once.
func TestRetainNothing(t *testing.T) {
	withLists(t, 40, func(l *lists) {
		l.list(20, 20)
		l.want("half of the Services are missing", nil, 20)
		for i := range 11 {
			l.change(convertService(uniformService(i)).drop)
		}
		l.want("most are deleted by events", nil, 9)
		l.list(0, 0)
		l.want("nine of nine are missing", nil, 0)
		if e := took[*MissingError](l); len(e) != 1 || !strings.HasPrefix(e[0].Error(), "a list lacks all 9 Services that "+
			"serve, or their EndpointSlices (ns-11/svc-11, ns-12/svc-12, ns-13/svc-13, ...)") {
			t.Errorf("reported %v", e)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := newLists(t, Options{})
		l.list(100, 100)
		l.setSynced()
		l.want("at first", nil, 100)
		l.list(0, 0)
		l.want("switched off", nil, 0)
		if e := took[*MissingError](l); len(e) != 1 || e[0].Services != 100 {
			t.Errorf("reported %v", e)
		}
	})
}

// TestRetainedGivesWay: what comes while Services are retained is in force at once, also
// where a retained Service has its address.
func TestRetainedGivesWay(t *testing.T) {
	withLists(t, 20, func(l *lists) {
		l.list(0, 0)
		l.want("after the lists", services(20), 20)
		heir := uniformService(100)
		heir.Spec.ClusterIP, heir.Spec.ClusterIPs = "172.30.0.3", []string{"172.30.0.3"}
		l.change(convertService(heir).put)
		l.change(convertSlice(uniformSlice(100, 1)).put)
		l.want("with the heir", services(20), 21)
		if l.last.Conflicts.At(service.NewName(heir.Namespace, heir.Name)) != nil {
			t.Error("the new Service does not have its address")
		}
		if c := l.last.Conflicts.At("ns-3/svc-3"); !c.Has(service.Claim{Addr: netip.MustParseAddr("172.30.0.3")}) {
			t.Error("the retained Service still has its address")
		}
	})
}

// TestRetainOurs: a Service that is there and is not this proxy's, such as one that has
// become an ExternalName, is not missing, neither later nor at the start.
func TestRetainOurs(t *testing.T) {
	foreign := uniformService(0)
	foreign.Spec.Type = corev1.ServiceTypeExternalName
	withLists(t, 20, func(l *lists) {
		l.list(0, 0)
		l.change(convertService(foreign).put)
		l.want("one is there", services(19), 19)
		l.change(convertService(foreign).drop)
		l.want("it is deleted", services(19), 19)
		l.services.replace([]*serviceObject{convertService(foreign)})
		l.services.replace(nil)
		l.want("it comes and goes by lists", services(19), 19)
		if l.index.joined["ns-0/svc-0"] != nil {
			t.Error("the index still has it")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		l := newLists(t, Options{Retain: retainFor, Former: &former{n: 20}})
		l.services.replace([]*serviceObject{convertService(foreign)})
		l.listSlices(0)
		l.release(t.Context())
		l.want("at the start", services(19), 19)
	})
}

// TestRetainFollowsSlices: endpoints that slices have taken away from a retained Service do
// not come back when the slices go, too.
func TestRetainFollowsSlices(t *testing.T) {
	withLists(t, 20, func(l *lists) {
		l.listServices(0)
		l.want("without Services", services(20), 20)
		l.change(convertSlice(uniformSlice(0, 0)).put)
		l.want("a slice becomes empty", services(20), 19)
		l.listSlices(0)
		l.want("without slices", services(20), 19)
		l.change(convertService(uniformService(0)).put)
		l.want("the Service is back", map[string]int{"service": 19, "endpoints": 1}, 19)
	})
}

// TestEndpointsKept: each port has the endpoints of the kept port with its name, or else
// with its number, wherever that is.
func TestEndpointsKept(t *testing.T) {
	const ports = 2000
	kept := &service.Service{}
	for i := range ports {
		one := service.MergeEndpoints([]service.Endpoint{{Addr: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"),
			uint16(1+i))}})
		kept.Ports = append(kept.Ports, service.Port{Name: fmt.Sprint("p", i), Protocol: service.TCP, Port: uint16(1 + i),
			Endpoints: one})
	}
	for name, c := range map[string]struct {
		change func(i int) service.Port
		want   func(i int) int
	}{
		"as before": {func(i int) service.Port { return kept.Ports[i] }, func(i int) int { return i }},
		"reversed": {func(i int) service.Port { return kept.Ports[ports-1-i] }, func(i int) int {
			return ports - 1 - i
		}},
		"other numbers": {func(i int) service.Port {
			return service.Port{Name: fmt.Sprint("p", ports-1-i), Protocol: service.TCP}
		}, func(i int) int { return ports - 1 - i }},
		"other names": {func(i int) service.Port { return service.Port{Protocol: service.TCP, Port: uint16(1 + i)} },
			func(i int) int { return i }},
		"others": {func(i int) service.Port { return service.Port{Protocol: service.UDP, Port: uint16(1 + i)} },
			func(int) int { return -1 }},
	} {
		endpoints := endpointsKept(kept)
		for i := range ports {
			p := c.change(i)
			var want service.Endpoints
			if at := c.want(i); at >= 0 {
				want = kept.Ports[at].Endpoints
			}
			if got := endpoints(i, &p); !got.Same(want) {
				t.Fatalf("%s: port %d has the wrong endpoints", name, i)
			}
		}
	}
}

// TestRetainRandomly: whatever lists and events come, everything that the source has is
// served as without retention, and once the time is over nothing else is.
func TestRetainRandomly(t *testing.T) {
	retained := 0
	rounds := uint64(60)
	if testing.Short() {
		rounds = 10
	}
	for seed := range rounds {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			with, without := newLists(t, Options{Retain: retainFor}), newLists(t, Options{})
			for _, l := range []*lists{with, without} {
				l.list(30, 30)
				l.setSynced()
			}
			for range 60 {
				i, n, pods, kind := rng.IntN(30), []int{0, 3, 30}[rng.IntN(3)], rng.IntN(4), rng.IntN(12)
				for _, l := range []*lists{with, without} {
					switch kind {
					case 0:
						l.listServices(n)
					case 1:
						l.listSlices(n)
					case 2:
						l.change(convertService(uniformService(i)).drop)
					case 3:
						l.change(convertSlice(uniformSlice(i, 0)).drop)
					case 4, 5, 6, 7:
						l.change(convertService(uniformService(i)).put)
					default:
						l.change(convertSlice(uniformSlice(i, pods)).put)
					}
					if i%3 == 0 {
						l.settle()
					}
				}
				time.Sleep(time.Duration(rng.IntN(60)) * time.Second)
				with.settle()
				without.settle()
				retained += with.Retained().Services
				for name, want := range without.last.Services.All() {
					got := with.last.Services.At(name)
					if got == nil || got.Retained == service.RetainedNothing && got.String() != want.String() {
						t.Fatalf("seed %d: %s is served as\n%v\nwant\n%s", seed, name, got, want)
					}
				}
			}
			time.Sleep(retainFor)
			with.settle()
			if got, want := with.last.String(), without.last.String(); got != want {
				t.Errorf("seed %d: at the end\n%s\nwant\n%s", seed, got, want)
			}
			if r := with.Retained(); r.Services != 0 {
				t.Errorf("seed %d: still %s", seed, r)
			}
		})
	}
	if retained == 0 {
		t.Error("nothing was ever retained: the test shows nothing")
	}
}

// TestRetainManifests: a directory without any object, such as one that is no longer
// mounted, is suspicious. Every other edit counts at once.
func TestRetainManifests(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.yaml")
	var all strings.Builder
	var addresses []string
	for i := range 12 {
		a := fmt.Sprintf("10.96.0.%d", 10+i)
		addresses = append(addresses, a)
		fmt.Fprintf(&all, "%s\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s%02[2]d, "+
			"namespace: default, labels: {kubernetes.io/service-name: s%02[2]d}}\naddressType: IPv4\nports: [{port: "+
			"80}]\nendpoints: [{addresses: [10.0.0.%[2]d]}]\n---\n",
			manifest(fmt.Sprintf("s%02d", i), a), i)
	}
	write(t, path, []byte(all.String()))
	f := followWith(t, dir, Options{Retain: time.Hour})
	f.await(addresses...)
	must(t, os.Remove(path))
	f.awaitProblem("a list lacks 12 of 12 Services that serve")
	write(t, path, manifest("other", "10.96.0.99"))
	f.await("10.96.0.99")
	if slices.Contains(f.addresses(), addresses[0]) {
		t.Error("a Service is served on although the manifests have others")
	}
}
