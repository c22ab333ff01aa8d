package watch

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/model/service"
)

// former tells of the uniform Services 0 to n.
type former struct {
	n    int
	err  error
	read int
}

func (f *former) Names() ([]service.Name, error) {
	var names []service.Name
	for i := range f.n {
		s := uniformService(i)
		names = append(names, service.NewName(s.Namespace, s.Name))
	}
	return names, f.err
}

func (f *former) Services(*service.Node) ([]*service.Service, error) {
	f.read++
	var all []*service.Service
	for _, s := range uniformIndex(f.n, 2).builder.Snapshot().Services.All() {
		all = append(all, s)
	}
	return all, nil
}

// TestRetainAtStart: the first lists lack most of what the rules serve.
func TestRetainAtStart(t *testing.T) {
	for name, c := range map[string]struct {
		services, slices int
		retained         map[string]int
		serving, read    int
	}{
		"empty":              {0, 0, services(20), 20, 1},
		"a few":              {5, 5, services(15), 20, 1},
		"without slices":     {20, 0, endpoints(20), 20, 1},
		"few with slices":    {20, 4, endpoints(16), 20, 1},
		"half":               {10, 10, nil, 10, 0},
		"all":                {20, 20, nil, 20, 0},
		"all, without three": {20, 17, nil, 17, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &former{n: 20}
				l := newLists(t, Options{Retain: retainFor, Former: f})
				l.list(c.services, c.slices)
				l.release(t.Context())
				l.want("at first", c.retained, c.serving)
				if f.read != c.read {
					t.Errorf("the rules were read %d times, want %d", f.read, c.read)
				}
				time.Sleep(retainFor)
				l.want("after the end", nil, min(c.services, c.slices))
			})
		})
	}
	t.Run("all are another proxy's now", func(t *testing.T) { // the option --nftproxy-service-proxy-name is new
		synctest.Test(t, func(t *testing.T) {
			l := newLists(t, Options{Retain: retainFor, Former: &former{n: 20}, ProxyName: "mesh"})
			l.list(20, 20)
			l.release(t.Context())
			l.want("at first", nil, 0)
			if n := l.last.Others.Len(); n != 20 {
				t.Errorf("%d Services of others, want 20", n)
			}
		})
	})
	t.Run("not known", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLists(t, Options{Retain: retainFor, Former: &former{20, errors.New("no"), 0}})
			l.release(t.Context())
			l.want("at first", nil, 0)
			if e := took[*FormerError](l); len(e) != 1 {
				t.Errorf("reported %v", e)
			}
		})
	})
}
