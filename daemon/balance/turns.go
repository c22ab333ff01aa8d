package balance

import (
	"slices"

	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// turns has namespaces take turns, and the Services of each.
type turns struct {
	// namespaces are in the order of their turns, and services those of each in theirs. queued has all of these, some of
	// which may be gone.
	namespaces []string
	services   map[string][]service.Name
	queued     map[service.Name]bool
}

func newTurns() turns {
	return turns{services: map[string][]service.Name{}, queued: map[service.Name]bool{}}
}

// add adds a Service, unless it is there.
func (t *turns) add(name service.Name) {
	if t.queued[name] {
		return
	}
	t.queued[name] = true
	namespace, _ := name.Split()
	if len(t.services[namespace]) == 0 {
		t.namespaces = append(t.namespaces, namespace)
	}
	t.services[namespace] = append(t.services[namespace], name)
}

// each visits the Services of all that are there still, each once, until visit returns false. The next call goes on
// behind the last one: with one Service of each namespace, then another one of each that has more.
func (t *turns) each(all treap.Map[service.Name, *service.Service], visit func(*service.Service) bool) {
	left := map[string]int{}
	for namespace, names := range t.services {
		left[namespace] = len(names)
	}
	for waiting, more := slices.Clone(t.namespaces), true; more && len(waiting) > 0; {
		var again []string
		for _, namespace := range waiting {
			s := t.take(namespace, all, left)
			if s == nil {
				continue
			}
			again = append(again, namespace)
			if more = visit(s); !more {
				at := slices.Index(t.namespaces, namespace) + 1
				t.namespaces = slices.Concat(t.namespaces[at:], t.namespaces[:at])
				break
			}
		}
		waiting = again
	}
	t.namespaces = slices.DeleteFunc(t.namespaces, func(namespace string) bool { return len(t.services[namespace]) == 0 })
}

// take takes the next Service of a namespace, which then has its next turn after all others. It forgets those that are
// gone. It returns nil if none is left.
func (t *turns) take(namespace string, all treap.Map[service.Name, *service.Service],
	left map[string]int) *service.Service {
	for left[namespace] > 0 {
		left[namespace]--
		name := t.services[namespace][0]
		if t.services[namespace] = t.services[namespace][1:]; len(t.services[namespace]) == 0 {
			delete(t.services, namespace)
		}
		if s := all.At(name); s != nil {
			t.services[namespace] = append(t.services[namespace], name)
			return s
		}
		delete(t.queued, name)
	}
	return nil
}
