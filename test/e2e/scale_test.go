package e2e

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

const (
	fewServices  = 100
	manyServices = 10_000
	// changes is how many endpoints move.
	changes = 20
)

// spread are the numbers of endpoints that services have, in turn: 10 on average.
func spread() []int { return []int{8, 9, 10, 11, 12} }

// TestScale puts 10,000 Services with 10 endpoints each on an API server of its own. It
// asserts that the program is right, that the program has no more chains and rules than
// with 100 Services, and that a restart writes nothing. The benchmarks in bench/ measure
// the times.
func TestScale(t *testing.T) {
	controlplane.Require(t)
	shared.stopPlanes()
	plane := ownControlPlane(t)
	nft := netfilter.NFTForTest(t)

	few := newNodeOf(t, plane, "few")
	few.seedServices(0, fewServices)
	few.startProxy().stop()
	small := shapeOf(few, nft)

	n := newNodeOf(t, plane, "many")
	n.seedServices(fewServices, manyServices)
	p := n.startProxy()
	if l := p.syncs()[0]; *l.Services < manyServices {
		t.Fatalf("the first sync has %d services", *l.Services)
	}
	if diff := cmp.Diff(small, shapeOf(n, nft)); diff != "" {
		t.Errorf("chains and rules with %d services (-) and with %d (+):\n%s", fewServices, manyServices, diff)
	}
	moved := n.moveEndpoints(p)
	n.checkListing(nft, moved)

	p.stop()
	p = n.startProxy()
	for _, l := range p.syncs() {
		if *l.Written != 0 {
			t.Errorf("the restart wrote: %s", l.Text)
		}
	}
	p.stop()
}

// scaleNamespace has the services. Every node sees them.
const scaleNamespace = "default"

// seedServices stores the services from one number up to another.
func (n *node) seedServices(from, to int) {
	n.t.Helper()
	start := time.Now()
	var objects []runtime.Object
	for i := from; i < to; i++ {
		s := simple(fmt.Sprintf("service-%05d", i))
		s.Namespace, s.Spec.ClusterIPs = scaleNamespace, []string{clusterIP(i).String()}
		var addrs []netip.Addr
		for j := range spread()[i%len(spread())] {
			addrs = append(addrs, endpoint(i, j))
		}
		made := slice(s.Name, s, addrs...)
		made.Namespace = scaleNamespace
		for j := range made.Endpoints {
			made.Endpoints[j].NodeName = ptr.To(fmt.Sprintf("other-%d", (i+j)%100))
		}
		objects = append(objects, s, made)
	}
	n.must(n.plane.cluster.Seed(n.ctx, objects...))
	n.t.Logf("%d services seeded in %v", to-from, time.Since(start).Round(time.Millisecond))
}

// clusterIP is the cluster IP of a service by its number; endpoint is one of its
// endpoints.
func clusterIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)}) }
func endpoint(i, j int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte(j), byte(i >> 8), byte(i)})
}

// movedTo is the new address of the endpoint that a change moves. No other endpoint has it.
func movedTo(change int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 127, byte(77 + change>>8), byte(change)})
}

// moveEndpoints moves the last endpoint of some services, one after the other. Each move
// follows the kernel's notice of the move before. It returns the new addresses by
// service.
func (n *node) moveEndpoints(p *process) map[int]netip.Addr {
	n.t.Helper()
	l := listenIn(n.t, n.Node)
	moved := map[int]netip.Addr{}
	for k := range changes {
		i, to := k*(manyServices/changes), movedTo(k)
		moved[i] = to
		wanted := n.movedSlice(i, to)
		arrived := l.Expect(to)
		_, err := n.plane.client.DiscoveryV1().EndpointSlices(scaleNamespace).Update(n.ctx, wanted, metav1.UpdateOptions{})
		n.must(err)
		select {
		case <-arrived:
		case <-p.Exited():
			n.t.Fatalf("the proxy ended: %v", p.Err())
		case <-time.After(patience):
			n.t.Fatalf("change %d was not in the kernel within %v (notices lost: %d times)", k, patience, l.Lost())
		}
	}
	return moved
}

// movedSlice is the slice of a service with its last endpoint moved.
func (n *node) movedSlice(i int, to netip.Addr) *discoveryv1.EndpointSlice {
	n.t.Helper()
	s, err := n.plane.client.DiscoveryV1().EndpointSlices(scaleNamespace).Get(n.ctx, fmt.Sprintf("service-%05d", i),
		metav1.GetOptions{})
	n.must(err)
	s.Endpoints[len(s.Endpoints)-1].Addresses = []string{to.String()}
	return s
}

// shape has the counts that must not grow with the number of services.
type shape struct{ Chains, Rules int }

// shapeOf counts what nft lists in the tables, without the sets' elements.
func shapeOf(n *node, nft netfilter.NFT) map[string]shape {
	n.t.Helper()
	shapes := map[string]shape{}
	for _, family := range []string{"ip", "ip6"} {
		text, err := nft.Run(n.Node, "", "--terse", "list", "table", family, "nftproxy")
		n.must(err)
		var s shape
		inChain := false
		for l := range strings.Lines(text) {
			switch l = strings.TrimSpace(l); {
			case strings.HasPrefix(l, "chain "):
				s.Chains++
				inChain = true
			case l == "}":
				inChain = false
			case inChain && l != "" && !strings.HasPrefix(l, "type "):
				s.Rules++
			}
		}
		shapes[family] = s
	}
	n.t.Logf("chains and rules: %v", shapes)
	if shapes["ip"].Rules == 0 {
		n.t.Fatal("no rule was counted")
	}
	return shapes
}

// checkListing compares the table that nft prints with the services, and loads the text
// again.
func (n *node) checkListing(nft netfilter.NFT, moved map[int]netip.Addr) {
	n.t.Helper()
	start := time.Now()
	listing, err := nft.Ruleset(n.Node)
	n.must(err)
	n.t.Logf("nft list ruleset: %d bytes in %v", len(listing), time.Since(start).Round(time.Millisecond))

	var want []string
	for i := range manyServices {
		for j := range spread()[i%len(spread())] {
			a := endpoint(i, j)
			if to, ok := moved[i]; ok && j == spread()[i%len(spread())]-1 {
				a = to
			}
			want = append(want, fmt.Sprintf("%s %s", clusterIP(i), a))
		}
	}
	slices.Sort(want)
	var got []string
	element := regexp.MustCompile(`(10\.100\.\d+\.\d+) \. tcp \. 80 \. (?:0x)?[0-9a-f]+ : (10\.\d+\.\d+\.\d+) \. 8080`)
	for _, m := range element.FindAllStringSubmatch(listing, -1) {
		got = append(got, m[1]+" "+m[2])
	}
	slices.Sort(got)
	if !slices.Equal(want, got) {
		n.t.Errorf("the listing has %d endpoints of %d; the first of %d differences: %s", len(got), len(want),
			len(difference(want, got)), difference(want, got)[:1])
	}

	start = time.Now()
	text := withoutOwner(listing)
	empty := testnet.NamespaceForTest(n.t, "empty")
	n.must(nft.Load(empty, text))
	again, err := nft.Ruleset(empty)
	n.must(err)
	n.t.Logf("fed back and listed again in %v", time.Since(start).Round(time.Millisecond))
	if again := withoutOwner(again); again != text {
		d := difference(strings.Split(text, "\n"), strings.Split(again, "\n"))
		n.t.Errorf("the listing fed back lists differently: %d lines, the first %q", len(d), d[0])
	}
}

// withoutOwner removes the owner of a table from a listing. nft 1.0.6 prints one more
// blank line where a table has only a comment before its sets.
func withoutOwner(listing string) string {
	return regexp.MustCompile(`(?m)^\tcomment [^\n]*\n\n?|^\tflags [^\n]*\n\n?| # progname [^\n]*`).ReplaceAllString(
		listing, "")
}

// difference lists the lines that only one of the two texts has.
func difference(a, b []string) []string {
	count := map[string]int{}
	for _, s := range a {
		count[s]++
	}
	for _, s := range b {
		count[s]--
	}
	var only []string
	for s, c := range count {
		if c != 0 {
			only = append(only, s)
		}
	}
	slices.Sort(only)
	return only
}
