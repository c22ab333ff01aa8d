package watch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nftproxy/model/service"
)

func nodeWithPods(podCIDRs ...string) *corev1.Node {
	n := node("192.168.0.2")
	n.Spec.PodCIDRs = podCIDRs
	return n
}

// waits and goesOn match the messages before a wait and after a wait in vain.
func waits(p Problem) bool {
	return errors.Is(p, ErrNoPodCIDRs) && p.Object.String() == "Node node-0" && strings.Contains(p.Error(),
		"wait for one, up to 1h0m0s")
}

func goesOn(p Problem) bool {
	return errors.Is(p, ErrNoPodCIDRs) && strings.Contains(p.Error(), "going on without")
}

// TestAwaitPodCIDRs: nothing comes out before the Node has usable podCIDRs. Then
// everything comes out at once. Later changes of the podCIDRs are followed.
func TestAwaitPodCIDRs(t *testing.T) {
	for name, early := range map[string]*corev1.Node{
		"a Node without": node("192.168.0.2"), "no Node": nil, "a bad one": nodeWithPods("10.244.1.0"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newAPIServer(t)
			if early != nil {
				s.set("nodes", early)
			}
			s.set("services", uniformService(0))
			s.set("endpointslices", uniformSlice(0, 2))
			o := observe(t, s, Options{AwaitPodCIDRs: true, PodCIDRTimeout: time.Hour, NodeTimeout: time.Millisecond})
			o.awaitProblem(waits)
			if _, ok := o.out.Take(); ok {
				t.Fatal("published without podCIDRs")
			}
			s.set("nodes", nodeWithPods("10.244.1.0/24", "fd00:244:1::/64"))
			const pods = "  pod-cidr 10.244.1.0/24\n  pod-cidr fd00:244:1::/64\n"
			o.await(textNode + pods + textSvc0Two)
			if o.first != textNode+pods+textSvc0Two {
				t.Errorf("the first update was not complete:\n%s", o.first)
			}
			s.set("nodes", nodeWithPods("10.244.2.0/24"))
			o.await(textNode + "  pod-cidr 10.244.2.0/24\n" + textSvc0Two)
			s.remove("nodes", "node-0")
			o.awaitProblem(func(p Problem) bool { return errors.Is(p, ErrNoNode) })
			if got := o.last.Node.PodCIDRs; len(got) != 1 || got[0].String() != "10.244.2.0/24" {
				t.Errorf("without the Node the pods' ranges are %v", got)
			}
		})
	}
}

// TestPodCIDRsAreThere: where the Node has podCIDRs from the start, no wait is reported.
func TestPodCIDRsAreThere(t *testing.T) {
	s := newAPIServer(t)
	s.set("nodes", nodeWithPods("10.244.1.0/24"))
	s.set("services", uniformService(0))
	o := observe(t, s, Options{AwaitPodCIDRs: true, PodCIDRTimeout: time.Hour})
	o.await(textNode + "  pod-cidr 10.244.1.0/24\n" + textSvc0)
	s.remove("nodes", "node-0")
	p := o.awaitProblem(func(p Problem) bool { return !errors.As(p, new(*RequestError)) })
	if !errors.Is(p, ErrNoNode) {
		t.Errorf("before the Node went: %v", p)
	}
}

// TestPodCIDRsNeverCome: the wait ends, and a message says with which effect.
func TestPodCIDRsNeverCome(t *testing.T) {
	s := newAPIServer(t)
	s.set("nodes", node("192.168.0.2"))
	s.set("services", uniformService(0))
	o := observe(t, s, Options{AwaitPodCIDRs: true, PodCIDRTimeout: time.Millisecond})
	o.await(textNode + textSvc0)
	o.awaitProblem(goesOn)
	s.set("nodes", nodeWithPods("10.244.1.0/24"))
	o.await(textNode + "  pod-cidr 10.244.1.0/24\n" + textSvc0)
}

// TestAwaitPodCIDRsOfManifests: the same for a Node in a manifest.
func TestAwaitPodCIDRsOfManifests(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), manifest("a", "10.96.0.1"))
	f := followWith(t, dir, Options{AwaitPodCIDRs: true, PodCIDRTimeout: time.Hour})
	f.awaitProblem("wait for one, up to 1h0m0s")
	if _, ok := f.out.Take(); ok {
		t.Fatal("published without podCIDRs")
	}
	write(t, filepath.Join(dir, "node.yaml"), []byte("apiVersion: v1\nkind: Node\nmetadata: {name: node-0}\nspec: "+
		"{podCIDR: 10.244.1.0/24}\n"))
	f.await("10.96.0.1")
	if got := f.last.Node.PodCIDRs; len(got) != 1 || got[0].String() != "10.244.1.0/24" {
		t.Errorf("the first update has the pods' ranges %v", got)
	}

	never := followWith(t, filepath.Join(dir, "a.yaml"), Options{AwaitPodCIDRs: true, PodCIDRTimeout: time.Millisecond})
	never.await("10.96.0.1")
	never.awaitProblem("going on without")
}

// TestAwaitEnds: the end of the run ends the wait, without an update.
func TestAwaitEnds(t *testing.T) {
	out := service.NewMailbox()
	w := NewWatcher(Options{Node: "node-0", AwaitPodCIDRs: true}, out)
	if w.opts.PodCIDRTimeout != 5*time.Minute {
		t.Errorf("waits for %s by default", w.opts.PodCIDRTimeout)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	w.release(ended)
	w.publish()
	if _, ok := out.Take(); ok {
		t.Fatal("published after the end")
	}
}

// TestManyPodCIDRs: all ranges of a family count, up to a bound; the excess is a problem that names the item.
func TestManyPodCIDRs(t *testing.T) {
	var cidrs []string
	for i := range service.MaxPodRanges + 1 {
		cidrs = append(cidrs, fmt.Sprintf("10.%d.0.0/24", i))
	}
	var p problemList
	got := podCIDRs(&nodeWithPods(append(cidrs, "fd00::/64")...).Spec, &p)
	if len(got) != service.MaxPodRanges+1 || !got[len(got)-1].Addr().Is6() {
		t.Errorf("podCIDRs %v", got)
	}
	if len(p.list) != 1 || p.list[0].Field != "spec.podCIDRs[8]" || !strings.Contains(p.list[0].Error(),
		"8 ranges of a family at most") {
		t.Errorf("problems %v", p.list)
	}
}

// TestStrangePods: an endpoint of this node outside of its podCIDRs is a problem where these tell what is a pod, once,
// in whatever order the objects come. An endpoint of another node is none, and neither is a process of the node.
func TestStrangePods(t *testing.T) {
	addrs := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	// The slice has 10.0.0.1 on node-0 and 10.0.0.2 on node-1.
	for name, test := range map[string]struct {
		podCIDR string
		own     []netip.Addr
		off     bool
		want    int
	}{
		"outside":          {podCIDR: "10.244.1.0/24", own: addrs("192.168.0.2"), want: 1},
		"inside":           {podCIDR: "10.0.0.0/31", own: addrs("192.168.0.2")},
		"the node's own":   {podCIDR: "10.244.1.0/24", own: addrs("192.168.0.2", "10.0.0.1")},
		"another mode":     {podCIDR: "10.244.1.0/24", own: addrs("192.168.0.2"), off: true},
		"no address known": {podCIDR: "10.244.1.0/24"},
	} {
		events := []func(*index){
			func(ix *index) { ix.setNode(convertNode(nodeWithPods(test.podCIDR))) },
			func(ix *index) { ix.setHostAddresses(test.own, nil, nil) },
			func(ix *index) { ix.setSlice(convertSlice(uniformSlice(0, 2))) },
		}
		for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			ix := newIndex("node-0")
			ix.options.AwaitPodCIDRs = !test.off
			for range 2 {
				for _, i := range order {
					events[i](ix)
				}
			}
			got := 0
			for _, p := range ix.problems {
				if errors.Is(p.Err, ErrStrangePods) {
					got++
				}
			}
			if got != test.want {
				t.Errorf("%s, in the order %v: %d problems, want %d", name, order, got, test.want)
			}
		}
	}
}
